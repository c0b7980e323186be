"""A run directory that others damaged is told of, and nothing is written elsewhere."""

import os

import pytest

import meshwright as mw
from engine.experiment.runs import experiment
from meshwright.cli import main


@pytest.fixture
def trained(tmp_path):
    mw.run(experiment(tmp_path / "run", max_steps=1))
    return tmp_path / "run"


def test_a_lock_of_checkpoints_that_is_a_link_is_refused(trained, tmp_path):
    (trained / "checkpoints/.lock").unlink()
    (trained / "checkpoints/.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises((mw.MeshwrightError, OSError), match=r"is a link, a pipe or .*checkpoints/\.lock"):
        mw.run(experiment(trained, max_steps=2))
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_of_the_run_that_is_a_pipe_is_not_waited_for(trained):
    (trained / ".run.lock").unlink()
    os.mkfifo(trained / ".run.lock")
    with pytest.raises((mw.MeshwrightError, OSError), match=r"\.run\.lock"):
        mw.run(experiment(trained, max_steps=2))


def test_settings_that_are_no_text_are_told_as_changed(trained, capfd):
    (trained / "experiment.txt").write_bytes(b"seed = \xff\xfe")
    mw.run(experiment(trained, max_steps=2))
    assert "settings differ" in capfd.readouterr().err


def test_settings_of_an_attempt_that_are_no_text_leave_the_page_whole(trained):
    (trained / "attempts/step_00000000.txt").write_bytes(b"seed = \xff")
    assert main(["report", str(trained)]) == 0
