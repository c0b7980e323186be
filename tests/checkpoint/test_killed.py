"""Runs that are killed while they save, as processes of their own."""

import signal
import subprocess

import numpy as np
import pytest

from meshwright.arrays import restore
from meshwright.checkpoint import Checkpoints
from meshwright.formats import open_source

RUN = """
import os, signal, sys
import numpy as np
from meshwright.checkpoint import Checkpoints

directory, last_step = sys.argv[1], int(sys.argv[2])
with Checkpoints(directory) as checkpoints:
    for step in range(1, last_step + 1):
        checkpoints.save(step, {"x": np.full(1 << 24, step)})
    os.kill(os.getpid(), signal.SIGKILL)  # 128 MB are on their way to the disk
"""


@pytest.fixture(scope="module")
def killed(python, tmp_path_factory):
    """Return the directory of a run killed in its first save, and of the next run, killed in its second."""
    directory = tmp_path_factory.mktemp("killed")
    for last_step in (1, 2):
        run = subprocess.run([*python, "-c", RUN, str(directory), str(last_step)], check=False)
        assert run.returncode == -signal.SIGKILL
    return directory


def test_the_last_complete_checkpoint_is_good(killed):
    assert Checkpoints(killed).latest() == 1
    assert (restore(open_source(killed), {"x": np.zeros(1 << 24, int)})["x"] == 1).all()


def test_the_save_that_was_killed_is_cleared_away_by_the_next_run(killed):
    assert len(list(killed.glob("step_*.tmp-*"))) == 1
    with Checkpoints(killed):
        assert [path.name for path in killed.glob("step_*")] == ["step_00000001"]
