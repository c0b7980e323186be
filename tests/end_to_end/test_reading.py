"""Runs of several processes that read texts, which nobody has tokenized before."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from end_to_end.running import Shell, losses, processes_of, reached, wait_for

pytestmark = pytest.mark.nightly
RUN = ("-m", "meshwright", "train", "end_to_end.reading:experiment", "--fake-devices")


@pytest.fixture
def shell(tmp_path):
    made = Shell([sys.executable], tmp_path)
    tests = str(Path(__file__).parent.parent)
    made.environ["PYTHONPATH"] = os.pathsep.join([tests, made.environ["PYTHONPATH"]])
    docs = sorted(Path(os.__file__).parent.glob("*.py"))[:60]
    (tmp_path / "texts").mkdir()
    for path in docs:
        (tmp_path / "texts" / f"{path.stem}.txt").write_bytes(path.read_bytes())
    return made


def words(name):
    return f"workdir={name}", "texts=texts", f"store={name}-tokens"


def test_two_processes_read_what_one_reads_and_lose_nothing_when_one_is_killed(shell):
    alone = shell("train", "end_to_end.reading:experiment", "--fake-devices", "2", *words("alone"))
    assert alone.returncode == 0, alone.stderr
    launch = ("launch", "local", "-n", "2", "--restarts", "1", "--", sys.executable, *RUN, "1")
    launcher = shell.start(*launch, *words("killed"))
    wait_for(reached(shell.folder / "killed", 30), launcher)
    assert launcher.poll() is None, launcher.communicate()
    os.kill(processes_of(launcher)[-1], signal.SIGKILL)
    _, err = launcher.communicate(timeout=400)
    assert launcher.returncode == 0, err
    assert "failed first, with signal SIGKILL" in err
    assert "continuing after step" in err
    found, expected = losses(shell.folder / "killed"), losses(shell.folder / "alone")
    assert found.keys() == expected.keys()
    np.testing.assert_allclose([found[i] for i in found], [expected[i] for i in found], rtol=1e-5)
