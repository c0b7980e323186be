"""What the pods of a JobSet leave for each other when they end, on a volume and in a store."""

import signal

import pytest

from meshwright.base._storage._copies import read_text
from meshwright.base._storage._path import location
from meshwright.errors import MeshwrightError
from meshwright.launch import _pod
from meshwright.launch._members import End
from meshwright.launch._pod import EndFiles, copying_progress, leave_begun, leave_end, print_summary


@pytest.fixture(params=["volume", "store"])
def place(request, tmp_path, at, monkeypatch):
    monkeypatch.setattr(_pod, "_OTHERS_SECONDS", 0)
    return str(tmp_path) if request.param == "volume" else at


def ends_of(place, start="1", number_of_pods=3):
    ends = EndFiles(location(place) / "gpt.launch", start)
    for number in range(number_of_pods):
        leave_begun(ends, number, f"node-{number}")
    return ends


def told(ends, *failed, capsys):
    """Let these processes end, with their exit codes; return what is said, and how often."""
    for number, exit_code in failed:
        leave_end(ends, End(number, f"node-{number}", exit_code, (f"last of {number}",)))
    for number, _ in failed:
        print_summary(ends, number, 3, "gpt")
    return capsys.readouterr().err


def test_one_of_those_that_failed_tells_of_all_and_leaves_it_for_later(place, capsys):
    ends = ends_of(place)
    said = told(ends, (1, 6), (2, 1), capsys=capsys)
    assert said.count("failed first") == 1
    assert (
        "process 2 of 3 failed first, with exit code 1. It ran on node-2. Its last lines:\n    last of 2"
        in said
    )
    assert "process 0: no word of its end" in said
    assert said.removeprefix("meshwright launch: ") in read_text(f"{place}/gpt.launch/summary-1.txt")


def test_a_pod_that_is_gone_without_a_word_is_the_cause_if_the_others_only_miss_it(place, capsys):
    said = told(ends_of(place), (0, 6), (1, 6), capsys=capsys)
    assert "process 2 of 3 failed first, with signal SIGKILL. It ran on node-2, which is gone without" in said


def test_a_pod_that_never_began_is_not_said_to_be_killed(place, capsys):
    said = told(ends_of(place, number_of_pods=2), (0, 6), (1, 6), capsys=capsys)
    assert "process 0 of 3 failed first, with exit code 6" in said
    assert "process 2: no word of its end" in said


def test_processes_that_a_signal_ended_are_told_as_such(place, capsys):
    assert "failed first, with signal SIGKILL" in told(ends_of(place), (0, -signal.SIGKILL), capsys=capsys)


def test_what_an_earlier_jobset_of_the_same_name_left_is_removed(place, capsys):
    told(ends_of(place, "0"), (0, 1), (1, 3), capsys=capsys)
    ends_of(place, "0")
    left = {"ends-0/0.begun", "ends-0/1.begun", "ends-0/2.begun"}
    folder = location(place) / "gpt.launch"
    assert {
        str(path).removeprefix(f"{folder}/") for path in [*folder.glob("*/*"), *folder.glob("*.txt")]
    } == left


def test_processes_that_only_an_earlier_jobset_had_are_not_told_of(place, capsys):
    earlier = ends_of(place, number_of_pods=5)
    leave_end(earlier, End(3, "node-3", 2, ("an old failure",)))
    said = told(ends_of(place), (1, 1), capsys=capsys)
    assert "process 1 of 3 failed first, with exit code 1" in said
    assert "process 3" not in said
    assert "process 4" not in said


def test_the_newest_step_of_process_0_is_seen_by_all(place, tmp_path, capsys):
    ends, local = ends_of(place), tmp_path / "progress"
    with copying_progress(local, ends):
        local.write_text("40\n")
    assert "the newest checkpoint is of step 40" in told(ends, (1, 1), capsys=capsys)


def test_a_place_that_cannot_be_written_to_is_told_before_the_program_starts(tmp_path):
    (tmp_path / "gpt.launch").touch()
    with pytest.raises(
        MeshwrightError, match=f"{tmp_path}/gpt.launch/ends-0 cannot be written to: Not a dir"
    ):
        ends_of(tmp_path, "0")
