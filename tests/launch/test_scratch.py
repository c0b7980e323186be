"""Temporary directories of launchers, and what killed ones left of theirs."""

import subprocess
import tempfile
from pathlib import Path

import pytest

from launch.test_local import python
from meshwright.launch._local import scratch

MADE = """
import os, signal
from meshwright.launch._local import scratch
kept = scratch()
print(kept.name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_the_directory_of_a_killed_launcher_is_removed_at_the_next_start(temporary):
    left = Path(subprocess.run(python(MADE), capture_output=True, text=True).stdout.strip())
    (left / "progress").write_text("7")
    with scratch() as directory:
        assert [*temporary.iterdir()] == [Path(directory)]


def test_directories_of_those_that_live_and_of_others_stay(temporary, monkeypatch):
    with scratch() as mine:
        elsewhere = temporary / f"meshwright-launch-{'0' * 8}-1-1-x"  # of another machine
        earlier = temporary / "meshwright-launch-abcdefgh"  # which names no process
        for path in (elsewhere, earlier):
            path.mkdir()
        with scratch() as second:
            assert {*temporary.iterdir()} == {Path(mine), Path(second), elsewhere, earlier}
        monkeypatch.setattr("meshwright.launch._local.birth_of", lambda pid: "0")
        monkeypatch.setattr("meshwright.launch._local.os.getuid", lambda: 12345)
        with scratch():
            assert Path(mine).exists()  # it is another user's
