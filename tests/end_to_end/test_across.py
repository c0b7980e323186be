"""Two processes that are killed go on on a mesh of other axes."""

import signal

import numpy as np
import pytest

from end_to_end.running import losses


def train(shell, workdir, mesh, *more):
    """Train on two processes of four devices each."""
    words = ("train", "across:experiment", f"workdir={workdir}", f"mesh={mesh}", *more)
    program = (*shell.python, "-m", "meshwright", *words, "--fake-devices", "4")
    return shell("launch", "local", "-n", "2", "--", *program)


@pytest.mark.slow
def test_a_killed_run_with_split_rows_goes_on_with_stages_and_split_experts(shell):
    whole = shell(
        "train", "across:experiment", "workdir=across-whole", "mesh=data=2,fsdp=4", "--fake-devices", "8"
    )
    assert whole.returncode == 0, whole.stderr
    killed = train(shell, "across", "fsdp=2,sequence=4", "dies_at=5")
    assert killed.returncode == 128 + signal.SIGKILL, killed.stderr
    continued = train(shell, "across", "data=2,pipeline=2,expert=2")
    assert continued.returncode == 0, continued.stderr
    assert "continuing after step 4" in continued.stderr
    found, expected = (losses(shell.folder / run) for run in ("across", "across-whole"))
    assert list(found) == [*range(1, 9)]
    np.testing.assert_allclose([*found.values()], [*expected.values()], rtol=1e-5)
