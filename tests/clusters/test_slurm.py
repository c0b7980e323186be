"""`meshwright launch slurm` on a real SLURM: whatever happens, losses are those of an undisturbed run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import meshwright
from clusters.slurm import wait_until
from end_to_end.running import losses
from meshwright.metrics import read_jsonl

MESHWRIGHT = (sys.executable, "-W", "ignore", "-m", "meshwright")
PATHS = [str(Path(meshwright.__file__).parent.parent), str(Path(__file__).parent.parent)]


def submit(slurm, folder, *words, pause=0.0005):
    """Submit a job of two tasks on two nodes, each with one device, and return its number."""
    hidden = ("XLA_", "JAX_P")
    environ = {name: text for name, text in slurm.environ.items() if not name.startswith(hidden)}
    done = subprocess.run(
        [*MESHWRIGHT, "launch", "slurm", "-n", "2", "--sbatch", "parsable", "--save-seconds", "60", *words],
        env=environ | {"PYTHONPATH": os.pathsep.join(PATHS), "PAUSE": str(pause)},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def train(run):
    return (*MESHWRIGHT, "train", "clusters.slowly:experiment", "--fake-devices", "1", f"workdir={run}")


class Submitted:
    """A job that trains, while it runs."""

    def __init__(self, slurm, folder, *options, settings=(), pause=0.0005):
        self.slurm, self.run, self.out = slurm, folder / "run", folder / "out.txt"
        words = ("--sbatch", f"output={self.out}", *options, "--", *train(self.run), *settings)
        self.number = submit(slurm, folder, *words, pause=pause)

    def reach(self, step):
        metrics = self.run / "metrics.jsonl"

        def is_there():
            assert self.slurm.job(self.number)["JobState"] not in ("FAILED", "COMPLETED"), self.said()
            return metrics.exists() and any(report["step"] >= step for report in read_jsonl(metrics))

        wait_until(is_there, 90, self.said)

    def finish(self, restarts=0):
        """Wait until the job is done, after that many restarts by SLURM."""
        state = self.slurm.wait_for(self.number, ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL"))
        assert (state["JobState"], int(state["Restarts"])) == ("COMPLETED", restarts), self.said()

    def said(self):
        return self.out.read_text() if self.out.exists() else str(self.slurm.job(self.number))


@pytest.fixture(scope="module")
def undisturbed(slurm, tmp_path_factory):
    job = Submitted(slurm, tmp_path_factory.mktemp("undisturbed"), pause=0)
    job.finish()
    return losses(job.run)


def test_a_job_whose_time_is_nearly_over_saves_and_continues_in_its_next_start(slurm, tmp_path, undisturbed):
    job = Submitted(slurm, tmp_path)
    job.reach(30)
    slurm.run("scancel", "--batch", "--signal=USR1", job.number)  # as SLURM sends before the time limit
    job.finish(restarts=1)
    assert "the job goes back to the queue" in job.said()
    assert losses(job.run) == undisturbed


def test_a_cancelled_job_saves_and_stays_cancelled(slurm, tmp_path):
    job = Submitted(slurm, tmp_path)
    job.reach(30)
    slurm.run("scancel", job.number)
    state = slurm.wait_for(job.number, ("CANCELLED",))
    assert state["Restarts"] == "0"
    wait_until(lambda: "stopped by SIGTERM after step" in job.said(), 30, job.said)


@pytest.mark.clusters
def test_a_killed_task_starts_all_again_in_the_same_allocation(slurm, tmp_path, undisturbed):
    job = Submitted(slurm, tmp_path)
    job.reach(30)
    victims = subprocess.run(
        ["pgrep", "-f", f"^{sys.executable}.*workdir={job.run}"], capture_output=True, text=True
    )
    subprocess.run(["kill", "-9", victims.stdout.split()[-1]], check=True)
    job.finish()
    assert "failed first, with exit code 137" in job.said()
    assert "restart 1 of 3 in this allocation" in job.said()
    assert losses(job.run) == undisturbed


@pytest.mark.clusters
def test_a_run_that_always_fails_at_once_ends_after_its_restarts(slurm, tmp_path):
    words = (
        "--restarts",
        "2",
        "--sbatch",
        f"output={tmp_path}/out",
        "--",
        "bash",
        "-c",
        "echo no data; exit 1",
    )
    state = slurm.wait_for(submit(slurm, tmp_path, *words), ("FAILED",))
    # That of the task that failed, or 128 + 15 of the other, which srun then ended.
    assert state["ExitCode"] in ("1:0", "143:0")
    said = (tmp_path / "out").read_text()
    assert "2 restarts brought no newer checkpoint" in said
    assert re.search(
        r"process (\d) on n\d failed first, with exit code 1. Its last lines:\n\1: no data\n", said
    )


@pytest.mark.clusters
def test_a_preempted_job_gives_way_and_continues_later(slurm, tmp_path, undisturbed):
    job = Submitted(slurm, tmp_path)
    job.reach(30)
    urgent = slurm.run(
        *(
            "sbatch",
            "--parsable",
            "-p",
            "urgent",
            "-N3",
            "--exclusive",
            "-o",
            "/dev/null",
            "--wrap",
            "sleep 1",
        ),
        cwd=tmp_path,
    ).strip()
    slurm.wait_for(urgent, ("COMPLETED",))
    job.finish(restarts=1)
    assert losses(job.run) == undisturbed


@pytest.mark.clusters
def test_a_job_outlives_its_time_limit(slurm, tmp_path, undisturbed):
    # SLURM sends the signal up to a minute early: at any time from the start to the tenth second.
    job = Submitted(slurm, tmp_path, "--sbatch", "time=2 signal=B:USR1@110", pause=0.006)
    state = slurm.wait_for(job.number, ("COMPLETED", "FAILED", "TIMEOUT"))
    assert state["JobState"] == "COMPLETED", job.said()
    assert int(state["Restarts"]) >= 1
    assert losses(job.run) == undisturbed


@pytest.mark.clusters
def test_a_job_continues_on_other_nodes_when_one_is_lost(slurm, tmp_path, undisturbed):
    job = Submitted(slurm, tmp_path)
    job.reach(30)
    lost = slurm.run("scontrol", "show", "hostnames", slurm.job(job.number)["NodeList"]).split()[-1]
    slurm.cut_power(lost)
    job.finish(restarts=1)
    slurm.power_on(lost)
    assert losses(job.run) == undisturbed


@pytest.mark.clusters
def test_the_members_of_an_array_are_runs_of_their_own(slurm, tmp_path):
    run = f"{tmp_path}/run-$SLURM_ARRAY_TASK_ID"
    command = f"exec {' '.join(train(run))} max_steps=20"
    options = ("--name", "array", "--sbatch", f"array=0-1 output={tmp_path}/out-%a")
    number = submit(slurm, tmp_path, *options, "--", "bash", "-c", command)
    wait_until(
        lambda: (
            slurm.run("squeue", "-h", "-j", number, "-t", "all", "-o", "%T", check=False).split()
            == ["COMPLETED"] * 2
        ),
        90,
        lambda: slurm.run("squeue", "-t", "all"),
    )
    assert all(max(losses_of) == 20 for losses_of in map(_steps, tmp_path.glob("run-*")))


def _steps(run):
    return [report["step"] for report in read_jsonl(run / "metrics.jsonl")]
