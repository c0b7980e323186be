import os
import re
import signal
import subprocess

import numpy as np
import pytest

import meshwright as mw
from end_to_end.running import QUICK, STEPS, final_arrays, kill, losses, reached, wait_for
from launched import by_process

pytestmark = pytest.mark.slow


def launch(python, run, *more):
    demo = (*python, "-m", "meshwright", "demo", "digits", "--fake-devices", "4")
    return (
        "launch",
        "local",
        "-n",
        "2",
        "--",
        *demo,
        f"workdir={run}",
        "mesh=data=2,fsdp=2,tensor=2",
        *QUICK,
        *more,
    )


@pytest.fixture(scope="module")
def one_process(shell):
    """A run of one process on eight devices."""
    done = shell("demo", "digits", "workdir=alone", *QUICK)
    assert done.returncode == 0, done.stderr
    return shell.folder / "alone"


@pytest.fixture(scope="module")
def two_processes(shell):
    """A run on two processes of four devices each, up to step 60, continued by one process of eight."""
    first = shell(*launch(shell.python, "not/there/two", "max_steps=60"))
    assert first.returncode == 0, first.stderr
    run = shell.folder / "not/there/two"
    (run / "screen.txt").write_text(first.stderr)
    return run


def test_two_processes_of_four_devices_equal_one_of_eight(two_processes, one_process):
    found, expected = losses(two_processes), losses(one_process)
    np.testing.assert_allclose(
        [found[i] for i in range(1, 61)], [expected[i] for i in range(1, 61)], rtol=1e-6
    )


def test_both_make_the_run_directory_and_one_shows_the_reports(two_processes):
    shown = (two_processes / "screen.txt").read_text()
    assert len(re.findall(r"^\[0\].* step=\d+/60 loss=", shown, re.M)) == 60
    assert not re.findall(r"^\[1\].* step=", shown, re.M)
    assert sorted(log.name for log in two_processes.glob("logs/*")) == [
        f"process-0000{i}.log" for i in range(2)
    ]


def test_a_checkpoint_of_two_processes_continues_on_one(two_processes, one_process, shell):
    done = shell("demo", "digits", "workdir=not/there/two", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "continuing after step 60" in done.stderr
    found, expected = losses(two_processes), losses(one_process)
    assert len(found) == STEPS
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-5)


def test_a_checkpoint_of_one_process_continues_on_two(shell, one_process):
    assert shell("demo", "digits", "workdir=one", *QUICK, "max_steps=60").returncode == 0
    done = shell(*launch(shell.python, "one"))
    assert done.returncode == 0, done.stderr
    found, expected = losses(shell.folder / "one"), losses(one_process)
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-5)
    assert final_arrays(shell.folder / "one").keys() == final_arrays(one_process).keys()


def children(pid):
    """The processes below `pid`, in the order in which they were started."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True).stdout
    below = [int(child) for child, parent in map(str.split, listed.splitlines()) if int(parent) == pid]
    return [process for child in sorted(below) for process in (child, *children(child))]


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_one_killed_process_ends_the_launch_with_its_error_and_no_orphan(cold_shell):
    shell = cold_shell
    launcher = shell.start(*launch(shell.python, "orphans", "steps=100000"))
    try:
        wait_for(reached(shell.folder / "orphans", 5), launcher)
        processes = children(launcher.pid)
        os.kill(processes[1], signal.SIGKILL)
        _, err = launcher.communicate(timeout=400)
    finally:
        kill(launcher)
    assert launcher.returncode == 128 + signal.SIGKILL
    assert re.search(r"process 1 of 2 failed first, with signal SIGKILL", err)
    assert not [process for process in processes if is_alive(process)]


def test_sigterm_to_one_process_stops_both_at_one_step_with_a_checkpoint(shell, cold_shell):
    launcher = cold_shell.start(*launch(shell.python, "preempted", "steps=100000"))
    try:
        wait_for(reached(shell.folder / "preempted", 5), launcher)
        os.kill(children(launcher.pid)[1], signal.SIGTERM)
        _, err = launcher.communicate(timeout=400)
    finally:
        kill(launcher)
    assert launcher.returncode == 75
    stopped = {int(step) for step in re.findall(r"stopped by SIGTERM after step (\d+)", err)}
    saved = max(
        int(path.name.removeprefix("step_"))
        for path in (shell.folder / "preempted/checkpoints").glob("step_*")
    )
    assert stopped == {saved}


def test_a_shard_that_is_not_finite_on_one_process_ends_both_unsaved(shell):
    train = (*shell.python, "-m", "meshwright", "train", "spoilt:experiment", "--fake-devices", "2")
    done = shell("launch", "local", "-n", "2", "--", *train, "workdir=spoilt")
    assert done.returncode == 4, done.stderr
    err = by_process(done.stderr)
    for process in (0, 1):
        told = rf"^\[{process}\] .*the state after step 4 is not finite: params/w; it is not saved"
        assert re.search(told, err, re.M), err
        assert re.search(rf"^\[{process}\] .*newest checkpoint: step 2", err, re.M)
    assert mw.checkpoints.open_source(shell.folder / "spoilt/checkpoints").step == 2
