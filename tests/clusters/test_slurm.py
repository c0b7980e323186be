"""`meshwright launch slurm` on a real SLURM: whatever happens, losses are those of an undisturbed run."""

import re
import subprocess

import pytest

from clusters.engines import MESHWRIGHT, PATHS, OnSlurm, newest, reach, submit, train
from clusters.pods import python_environ
from end_to_end.running import losses
from eventually import eventually


def submitted(slurm, folder, *options, **more):
    """Submit a job that trains."""
    job = OnSlurm(slurm, folder, folder / "run", *options, **more)
    job.start()
    return job


def completes(job, restarts=0):
    """Wait until the job is done, after that many restarts by SLURM."""
    state = job.slurm.wait_for(job.number, ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL"))
    assert (state["JobState"], int(state["Restarts"])) == ("COMPLETED", restarts), job.said()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The losses of the same program in one process with two devices, where nothing happens."""
    run = tmp_path_factory.mktemp("undisturbed")
    words = [*train(run), "--fake-devices", "2"]
    done = subprocess.run(words, env=python_environ(PATHS), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return losses(run)


@pytest.mark.clusters
def test_a_job_continues_when_its_time_is_nearly_over_and_stays_cancelled(slurm, tmp_path, undisturbed):
    job = submitted(slurm, tmp_path)
    reach(job, 30)
    job.reach_the_time_limit()
    eventually(lambda: "the job goes back to the queue" in job.said(), reason=job.said)
    reach(job, newest(job.run) + 10)
    job.cancel()
    assert slurm.wait_for(job.number, ("CANCELLED",))["Restarts"] == "1"
    eventually(lambda: job.said().count("stopped by SIGTERM after step") >= 2, reason=job.said)
    found = losses(job.run)
    assert len(found) >= 40
    assert found == {step: undisturbed[step] for step in found}


@pytest.mark.clusters
@pytest.mark.nightly
def test_a_job_whose_time_is_nearly_over_ends_in_its_next_start(slurm, tmp_path, undisturbed):
    job = submitted(slurm, tmp_path)
    reach(job, 30)
    job.reach_the_time_limit()
    completes(job, restarts=1)
    assert losses(job.run) == undisturbed


@pytest.mark.clusters
@pytest.mark.nightly
def test_a_job_that_somebody_puts_back_into_the_queue_continues(slurm, tmp_path, undisturbed):
    job = submitted(slurm, tmp_path)
    reach(job, 30)
    slurm.run("scontrol", "requeue", job.number)
    completes(job, restarts=1)
    assert losses(job.run) == undisturbed


@pytest.mark.clusters
@pytest.mark.nightly
def test_a_job_continues_when_a_node_is_taken_down(slurm, tmp_path, undisturbed):
    job = submitted(slurm, tmp_path)
    reach(job, 30)
    job.take_down_a_node()
    completes(job, restarts=1)
    job.close()
    assert losses(job.run) == undisturbed


@pytest.mark.clusters
def test_a_killed_task_starts_all_again_in_the_same_allocation(slurm, tmp_path, undisturbed):
    job = submitted(slurm, tmp_path)
    reach(job, 30)
    job.kill()
    completes(job)
    assert "failed first, with exit code 137" in job.said()
    assert "restart 1 of 3 in this allocation" in job.said()
    assert re.search(r"of 2 processes, exit codes:.* 1 × 137,.* Newest checkpoint: of step \d+\.", job.said())
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
    assert re.search(r"to go on from the newest checkpoint \(none\): scontrol requeue \d+\n", said)
    assert re.search(
        r"process (\d) on n\d failed first, with exit code 1. Its last lines:\n\1: no data\n", said
    )


@pytest.mark.clusters
def test_a_preempted_job_gives_way_and_continues_later(slurm, tmp_path, undisturbed):
    job = submitted(slurm, tmp_path)
    reach(job, 30)
    job.preempt()
    completes(job, restarts=1)
    assert losses(job.run) == undisturbed


@pytest.mark.clusters
@pytest.mark.nightly  # SLURM's limits are whole minutes
def test_a_job_outlives_its_time_limit(slurm, tmp_path, undisturbed):
    # SLURM sends the signal up to a minute early: at any time from the start to the tenth second.
    job = submitted(slurm, tmp_path, "--sbatch", "time=2 signal=B:USR1@110", pause=0.006)
    state = slurm.wait_for(job.number, ("COMPLETED", "FAILED", "TIMEOUT"))
    assert state["JobState"] == "COMPLETED", job.said()
    assert int(state["Restarts"]) >= 1
    assert losses(job.run) == undisturbed


@pytest.mark.clusters
def test_a_job_continues_on_other_nodes_when_one_is_lost(slurm, tmp_path, undisturbed):
    job = submitted(slurm, tmp_path)
    reach(job, 30)
    job.lose_a_node()
    completes(job, restarts=1)
    job.close()
    assert losses(job.run) == undisturbed


@pytest.mark.clusters
def test_the_output_of_a_job_is_shown_until_it_is_over(slurm, tmp_path):
    # The end of one task kills the other: none may end before both have written.
    wait = "until [ -e wrote-0 ] && [ -e wrote-1 ]; do sleep 0.1; done"
    program = f"echo task $SLURM_PROCID; touch wrote-$SLURM_PROCID; {wait}; exit 3"
    words = ("launch", "slurm", "-n", "2", "--tail", "--", "bash", "-c", program)
    done = subprocess.run(
        [*MESHWRIGHT, *words], env=slurm.environ, cwd=tmp_path, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 3, done.stderr
    assert {"[0] task 0", "[1] task 1"} <= set(done.stdout.splitlines())
    assert re.search(r"process \d on n\d failed first, with exit code 3", done.stderr)
    assert "to go on from the newest checkpoint (none): scontrol requeue" in done.stderr


@pytest.mark.clusters
def test_the_members_of_an_array_are_runs_of_their_own(slurm, tmp_path, undisturbed):
    run = f"{tmp_path}/run-$SLURM_ARRAY_TASK_ID"
    command = f"exec {' '.join(train(run))} max_steps=20"
    options = ("--name", "array", "--sbatch", f"array=0-1 output={tmp_path}/out-%a")
    number = submit(slurm, tmp_path, *options, "--", "bash", "-c", command)
    eventually(
        lambda: (
            slurm.run("squeue", "-h", "-j", number, "-t", "all", "-o", "%T", check=False).split()
            == ["COMPLETED"] * 2
        ),
        reason=lambda: slurm.run("squeue", "-t", "all"),
    )
    expected = {step: loss for step, loss in undisturbed.items() if step <= 20}
    assert [losses(run) for run in sorted(tmp_path.glob("run-*"))] == [expected] * 2
