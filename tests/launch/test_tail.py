"""The output of a job of SLURM, shown here. `scontrol` is a script; tests/clusters has a real one."""

import os

import pytest

from meshwright.launch._slurm import tail_slurm

SCONTROL = """#!/bin/sh
if [ -e {folder}/asked ]; then state=$(cat {folder}/end); else state="RUNNING ExitCode=0:0"; fi
touch {folder}/asked
printf ' 0: hello\\n 1: hello\\nof the script\\n 1: me\\n' > {folder}/out
echo "JobId=7 JobState=$state StdOut={folder}/out StdErr={folder}/out"
"""


@pytest.fixture
def ends(tmp_path, monkeypatch):
    """Let `scontrol` say that job 7 ends in a way."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(SCONTROL.format(folder=tmp_path))
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("meshwright.launch._slurm._POLL_SECONDS", 0.01)
    return (tmp_path / "end").write_text


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("COMPLETED ExitCode=0:0", 0),
        ("FAILED ExitCode=3:0", 3),
        ("FAILED ExitCode=0:9", 137),
        ("TIMEOUT ExitCode=0:0", 1),
    ],
)
def test_the_output_of_a_job_is_shown_and_its_exit_code_returned(ends, capsys, end, code):
    ends(end)
    assert tail_slurm("7", 2) == code
    out, err = capsys.readouterr()
    assert out.splitlines() == ["[0-1] hello", "[1] me"]
    assert err == "of the script\n"
