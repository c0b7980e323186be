"""Rounds on two processes: one that dies ends both, and the program begun anew comes to the same bits."""

import json
import shutil
from pathlib import Path

import pytest

from meshwright.launch._internal import launch_local

PROGRAM = str(Path(__file__).with_name("playing.py"))


@pytest.fixture(scope="module")
def play(python, tmp_path_factory):
    """Return a function that plays rounds on so many processes, and returns the exit code and the outcome."""

    def play(num_processes, workdir, dies_in=0):
        result = tmp_path_factory.mktemp("result") / "result.json"
        command = [*python, PROGRAM, str(workdir), str(result), str(dies_in)]
        code = launch_local(command, num_processes, grace_seconds=20)
        return code, json.loads(result.read_text()) if result.exists() else None

    return play


@pytest.fixture(scope="module")
def undisturbed(play, tmp_path_factory):
    code, found = play(2, tmp_path_factory.mktemp("undisturbed"))
    assert code == 0
    return found


@pytest.fixture(scope="module")
def killed(play, tmp_path_factory):
    """Return the directory of rounds whose third was cut off: one of two processes was killed in it."""
    workdir = tmp_path_factory.mktemp("killed")
    assert play(2, workdir, dies_in=3) == (128 + 9, None)
    return workdir


@pytest.mark.slow
def test_a_process_that_dies_in_a_round_leaves_the_rounds_before_it(killed):
    assert [path.name for path in (killed / "rounds").glob("step_????????")] == ["step_00000002"]


@pytest.mark.slow
def test_begun_anew_on_two_processes_they_come_to_the_same_bits(play, undisturbed, killed, tmp_path):
    workdir = shutil.copytree(killed, tmp_path / "again")
    assert play(2, workdir) == (0, undisturbed)


@pytest.mark.slow
def test_one_process_goes_on_with_the_rounds_of_two(play, undisturbed, killed, tmp_path):
    workdir = shutil.copytree(killed, tmp_path / "alone")
    code, found = play(1, workdir)
    assert (code, found["seen"], found["noise"]) == (0, undisturbed["seen"], undisturbed["noise"])
