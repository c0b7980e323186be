"""`meshwright doctor` on several machines."""

import subprocess

import pytest

from clusters.engines import MESHWRIGHT, PATHS, submit
from clusters.pods import python_environ
from clusters.slurm import missing

pytestmark = pytest.mark.clusters


def doctor(folder, *before):
    environ = python_environ(PATHS) | {"DISK": str(folder)}
    command = [*MESHWRIGHT, "launch", "local", "-n", "2", "--", *before, *MESHWRIGHT, "doctor"]
    return subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=400)


def test_all_processes_check_together_that_they_can_run_one_program(tmp_path):
    done = doctor(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "process 1 of 2" in done.stdout or "; all 2 have come" in done.stdout
    for said in ("the same number and kind on all", "within 0.", "shared directory", "ok"):
        assert said in done.stdout


@pytest.mark.skipif(bool(missing()), reason=f"a disk of its own: {missing()}")
def test_a_directory_that_is_not_shared_is_told(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    own = 'if [ "$JAX_PROCESS_ID" = 1 ]; then mount -t tmpfs none "$DISK"; cd "$DISK"; fi; exec "$@"'
    done = doctor(folder, "unshare", "--mount", "sh", "-c", own, "sh")
    assert done.returncode == 1
    assert f"not all processes see the files of process 0 in {folder}" in done.stdout


def test_the_nodes_of_a_slurm_job_are_checked_together(slurm, tmp_path):
    out = tmp_path / "out.txt"
    words = ("--sbatch", f"output={out}", "--", *MESHWRIGHT, "doctor", "--fake-devices", "1")
    state = slurm.wait_for(submit(slurm, tmp_path, *words), ("COMPLETED", "FAILED"))
    assert state["JobState"] == "COMPLETED", out.read_text()
    for said in ("the same number and kind on all", "shared directory", "ok"):
        assert said in out.read_text()
