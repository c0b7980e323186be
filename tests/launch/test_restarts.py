"""A run that fails starts again, as long as its checkpoints get newer."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import UsageError
from meshwright.launch._local import launch_local
from meshwright.launch._outcome import FINAL_EXIT_CODES, Restarts

FAIL_AT_FIRST = """
import os, pathlib, signal, sys, time
starts = pathlib.Path(sys.argv[1])
is_counted = starts.with_name("counted at " + os.environ["JAX_COORDINATOR_ADDRESS"])  # another for each start
if os.environ["JAX_PROCESS_ID"] == "0":
    starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
    if "saves" in sys.argv:
        pathlib.Path(os.environ["MESHWRIGHT_PROGRESS"]).write_text(str(len(starts.read_text())))
    is_counted.touch()
print("of", os.environ["JAX_NUM_PROCESSES"], flush=True)
why = pathlib.Path(os.environ["MESHWRIGHT_PROGRESS"] + ".failed")
if "why" in sys.argv:
    print("because", why.read_text() if why.exists() else "it is the first", flush=True)
while not is_counted.exists():
    time.sleep(0.01)
if len(starts.read_text()) <= int(sys.argv[2]):
    if os.environ["JAX_PROCESS_ID"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
"""


def program(tmp_path, num_failures, *words):
    return [sys.executable, "-c", FAIL_AT_FIRST, str(tmp_path / "starts"), str(num_failures), *words]


def num_starts(tmp_path):
    return len((tmp_path / "starts").read_text())


def test_a_killed_process_starts_all_again(tmp_path, capfd):
    assert launch_local(program(tmp_path, 1), 2, restarts=1) == 0
    assert num_starts(tmp_path) == 2
    report = capfd.readouterr().err
    assert "failed first, with signal SIGKILL" in report
    assert "starting 2 processes again, from no checkpoint; restart 1 of 1" in report


def test_a_run_that_starts_again_is_told_why(tmp_path, capfd):
    assert launch_local(program(tmp_path, 1, "why"), 2, restarts=1) == 0
    printed = capfd.readouterr().out
    assert "because it is the first" in printed
    assert "because process 1 of 2 failed first, with signal SIGKILL" in printed


def test_without_a_newer_checkpoint_it_gives_up(tmp_path):
    assert launch_local(program(tmp_path, 9), 2, restarts=1) == 137
    assert num_starts(tmp_path) == 2


def test_newer_checkpoints_give_all_restarts_back(tmp_path, capfd):
    assert launch_local(program(tmp_path, 3, "saves"), 2, restarts=1) == 0
    assert num_starts(tmp_path) == 4
    assert "from the checkpoint of step 3; restart 1 of 1" in capfd.readouterr().err


def test_it_goes_on_without_the_processes_that_failed(tmp_path, capfd):
    assert launch_local(program(tmp_path, 1), 3, restarts=1, min_processes=2) == 0
    assert "of 2" in capfd.readouterr().out


def test_a_failure_that_would_come_again_is_not_repeated(tmp_path):
    command = [sys.executable, "-c", "import sys; open(sys.argv[1], 'a').write('x'); sys.exit(2)"]
    assert launch_local([*command, str(tmp_path / "starts")], 1, restarts=5) == 2
    assert num_starts(tmp_path) == 1


def test_the_output_of_each_process_is_kept(tmp_path):
    launch_local(program(tmp_path, 1), 2, restarts=1, logs=tmp_path / "logs")
    assert (tmp_path / "logs/1.log").read_text() == "of 2\nof 2\n"


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"restarts": -1}, "--restarts is -1"),
        ({"restarts": 1, "min_processes": 3}, "from 1 to 2"),
        ({"min_processes": 1}, "needs --restarts"),
    ],
)
def test_wrong_numbers_are_refused(more, complaint):
    with pytest.raises(UsageError, match=complaint):
        launch_local(["true"], 2, **more)


ENDS = st.tuples(
    st.sampled_from([1, 5, 6, 75, 137, *FINAL_EXIT_CODES]), st.none() | st.integers(min_value=0, max_value=9)
)


@given(st.integers(min_value=0, max_value=4), st.lists(ENDS, max_size=40))
def test_no_history_has_more_restarts_than_allowed_without_progress(allowed, history):
    left, best, without = Restarts(allowed), -1, 0
    for exit_code, saved in history:
        newest = -1 if saved is None else saved
        without = 0 if newest > best else without
        best = max(best, newest)
        after = left.after_end(exit_code, saved)
        assert (after is None) == (exit_code in FINAL_EXIT_CODES or without == allowed)
        if after is None:
            return
        without, left = without + 1, after
        assert left.remaining == allowed - without
