"""The manifest of a JobSet, played through by real processes."""

import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

from clusters.engines import MESHWRIGHT, PATHS, newest, train
from clusters.kubernetes import Kubernetes
from clusters.pods import JobSet, python_environ
from clusters.slurm import missing
from end_to_end.running import losses
from eventually import eventually
from meshwright.base._storage._path import location
from meshwright.launch._job import Job
from meshwright.launch._jobset import Pods, jobset_manifest

pytestmark = [
    pytest.mark.clusters,
    pytest.mark.skipif(bool(missing()), reason=f"pods with names of their own: {missing()}"),
]


@pytest.fixture
def play(tmp_path):
    """Start the pods of a run, and end them after the test."""
    started = []

    def start(command, replicas=1, pause=0.0005, restarts=3, shared=None):
        job = Job(command, 2, name="digits", restarts=restarts, save_seconds=20)
        place = {"shared": shared} if shared else {"mounts": (f"runs:{tmp_path}",)}
        manifest = jobset_manifest(job, Pods("none", replicas=replicas, **place))
        started.append(JobSet(manifest, tmp_path, {**python_environ(PATHS), "PAUSE": str(pause)}))
        started[-1].start()
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_an_evicted_pod_starts_all_again_without_counting_and_a_killed_one_counts(play, tmp_path):
    run = tmp_path / "run"
    jobset = play(train(run), pause=0.001)
    eventually(lambda: newest(run) >= 20 or jobset.has_ended(), reason=jobset.said)
    jobset.evict((0, 1))
    eventually(jobset.has_ended, reason=jobset.said)
    stopped, killed = newest(run), []

    def kill_once():
        if not killed and jobset.log.count("started") == 2 and newest(run) > stopped + 5:
            jobset.pods[0, 0].send_signal(signal.SIGKILL)
            killed.append(True)

    jobset.hook = kill_once
    assert jobset.play() == "Completed"
    assert jobset.log == [
        "started",
        "RestartJobSetAndIgnoreMaxRestarts",
        "started",
        "RestartJobSet",
        "started",
    ]
    assert jobset.restarts == 1
    told = (tmp_path / "digits.launch/summary-1.txt").read_text()
    assert told.startswith("start 1: process 0 of 2 failed first, with signal SIGKILL")
    assert "process 0 of 2 failed first" in (tmp_path / "digits-workers-0-1.out").read_text()
    undisturbed = play(train(tmp_path / "undisturbed"), pause=0)
    assert undisturbed.play() == "Completed"
    assert losses(run) == losses(tmp_path / "undisturbed")


def test_a_usage_error_fails_at_once(play):
    jobset = play((sys.executable, "-c", "raise SystemExit(2)"))
    assert jobset.play() == "Failed"
    assert jobset.log == ["started", "FailJobSet"]


def test_a_run_that_always_fails_ends_after_its_restarts(play, tmp_path):
    jobset = play((sys.executable, "-c", "raise SystemExit(1)"), restarts=2)
    assert jobset.play() == "Failed"
    assert jobset.log.count("started") == 3
    told = [(tmp_path / f"digits.launch/summary-{start}.txt").read_text() for start in range(3)]
    assert [each.startswith(f"start {start}: process ") for start, each in enumerate(told)] == [True] * 3
    assert "It ran on this-node (pod digits-workers-0-" in told[0]


def test_several_jobs_are_one_run(play, tmp_path):
    jobset = play(train(tmp_path / "run"), replicas=2, pause=0)
    assert jobset.play() == "Completed"
    assert len(list(tmp_path.glob("run/logs/*.log"))) == 2


def test_a_jobset_without_a_volume_continues_from_a_store_and_leaves_its_summary_there(play, gcs_run):
    folder, killed = location(gcs_run) / "digits.launch", []
    jobset = play(train(f"{gcs_run}/x"), pause=0.001, shared=gcs_run)

    def kill_once():
        if not killed and (folder / "progress").is_file() and int((folder / "progress").read_bytes()) >= 20:
            jobset.pods[0, 1].kill()  # the whole pod, without a word
            killed.append(True)

    jobset.hook = kill_once
    assert jobset.play() == "Completed"
    assert jobset.log == ["started", "RestartJobSet", "started"]
    told = (folder / "summary-0.txt").read_bytes().decode()
    assert (
        "process 1 of 2 failed first, with signal SIGKILL. It ran on this-node (pod digits-workers-0-1)"
        in told
    )
    assert re.search(r"the newest checkpoint is of step [2-9]\d\n", told)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl")
def test_kubectl_shows_the_output_of_all_pods_by_the_command_that_the_launcher_prints(tmp_path):
    def run(*command):
        environ = {**python_environ(PATHS), "KUBECONFIG": str(kubernetes.config), "HOME": str(tmp_path)}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        return done

    with Kubernetes(tmp_path, python_environ(PATHS)) as kubernetes:
        words = ["-n", "2", "--image", "none", "--mount", f"runs:{tmp_path}", "--name", "digits"]
        program = "import os; print('hello of', os.environ['JAX_PROCESS_ID'])"
        said = run(*MESHWRIGHT, "launch", "jobset", *words, "--", sys.executable, "-c", program).stderr
        shown = run(*shlex.split(said.partition("to follow it: ")[2])).stdout
    assert sorted(line.partition("] ")[2] for line in shown.splitlines()) == ["hello of 0", "hello of 1"]
