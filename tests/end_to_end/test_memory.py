"""Processes that are killed continue from checkpoints in the memory of their hosts, and nothing is lost."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from end_to_end.running import Shell, losses, processes_of, reached, wait_for
from pairs import slow_first

TRAIN = ("-m", "meshwright", "train", "end_to_end.remembering:experiment", "--fake-devices", "1")


@pytest.fixture
def shell(tmp_path):
    made = Shell([sys.executable], tmp_path)
    tests = str(Path(__file__).parent.parent)
    made.environ["PYTHONPATH"] = os.pathsep.join([tests, made.environ["PYTHONPATH"]])
    return made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    shell = Shell([sys.executable], folder)
    tests = str(Path(__file__).parent.parent)
    shell.environ["PYTHONPATH"] = os.pathsep.join([tests, shell.environ["PYTHONPATH"]])
    done = shell(*launched(folder / "run", "--restarts", "0"))
    assert done.returncode == 0, done.stderr
    assert memory_left(folder) == []  # removed, as the run ended well
    return losses(folder / "run")


def launched(run, *options, settings=()):
    words = ("launch", "local", "-n", "2", *options, "--", sys.executable, *TRAIN)
    return (*words, f"workdir={run}", f"memory={run.parent / 'memory'}", *settings)


def memory_left(folder):
    return [path.name for path in folder.glob("memory/host-*/*")]


def continued(err):
    """Return the steps after which a run continued from memory."""
    return [int(step) for step in re.findall(r"continuing after step (\d+), from memory", err)]


@pytest.mark.parametrize("hosts", slow_first(2, 1))
def test_a_run_killed_twice_without_a_checkpoint_on_disk_ends_with_the_bits_of_one_that_was_not(
    shell, undisturbed, hosts
):
    run = shell.folder / "run"
    shell.environ["PAUSE"] = "0.0005"
    launcher = shell.start(*launched(run, "--restarts", "1", settings=[f"hosts={hosts}"]))
    for steps in (50, 100):  # one restart is allowed without progress: the memory is progress
        wait_for(reached(run, steps), launcher)
        os.kill(processes_of(launcher)[-1], signal.SIGKILL)
    _, err = launcher.communicate(timeout=400)
    assert launcher.returncode == 0, err
    first, second = dict.fromkeys(continued(err))
    assert first > 40
    assert second > 90
    assert losses(run) == undisturbed
    assert memory_left(shell.folder) == []
