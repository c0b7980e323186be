"""One program under each engine: how a run of two processes starts, what can happen to it, how it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import meshwright
from clusters.pods import JobSet, python_environ
from eventually import eventually
from meshwright.errors import EXIT_AGAIN
from meshwright.launch._job import Job
from meshwright.launch._jobset import Pods, jobset_manifest
from meshwright.observe._jsonl import read_jsonl

MESHWRIGHT = (sys.executable, "-W", "ignore", "-m", "meshwright")
PATHS = [str(Path(meshwright.__file__).parent.parent), str(Path(__file__).parent.parent)]
PAUSE = 0.0005
"""Seconds that an example takes to read."""


def train(run):
    return (*MESHWRIGHT, "train", "clusters.slowly:experiment", "--fake-devices", "1", f"workdir={run}")


def newest(run):
    """Return the newest step that a run has reported; 0 before the first."""
    metrics = run / "metrics.jsonl"
    return max((report["step"] for report in read_jsonl(metrics)), default=0) if metrics.exists() else 0


def processes(run):
    """Return the processes that train a run, but not those that only compile for it."""
    pattern = f"^{' '.join(MESHWRIGHT)} train .*workdir={run}"
    found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True)
    return [int(number) for number in found.stdout.split() if not _only_compiles(number)]


def _only_compiles(pid):
    with contextlib.suppress(OSError):
        return b"MESHWRIGHT_ONLY_COMPILE=" in Path(f"/proc/{pid}/environ").read_bytes()
    return False


class Local:
    """A run by `meshwright launch local`. Who starts it also starts it again after the machine was lost."""

    name, place, options = "local", "local", ("--restarts", "3")
    told_in, done = "the launcher's screen", 0

    def __init__(self, folder, run, environ=(), settings=(), pause=PAUSE):
        folder.mkdir(exist_ok=True)
        self.run, self.settings, self.out = run, settings, folder / "out.txt"
        self.environ = {**python_environ(PATHS), "PAUSE": str(pause), **dict(environ)}

    def start(self):
        words = [*MESHWRIGHT, "launch", self.place, "-n", "2", *self.options, "--", *train(self.run)]
        words += self.settings
        with self.out.open("a") as out:
            self.launcher = subprocess.Popen(words, env=self.environ, stdout=out, stderr=out)

    def said(self):
        """Return all that a user can read of the run, without opening the run."""
        return self.out.read_text()

    def ended(self):
        """Return the exit code of the engine; None while it runs or will start again."""
        return self.launcher.poll()

    def code(self):
        """Return the exit code of the newest start that has ended."""
        return self.launcher.poll()

    def kill(self):
        os.kill(processes(self.run)[-1], signal.SIGKILL)

    def preempt(self):
        self.launcher.send_signal(signal.SIGTERM)

    def lose_a_node(self):
        self.launcher.kill()  # its processes die with it

    def cancel(self):
        self.launcher.send_signal(signal.SIGINT)

    def close(self):
        self.launcher.kill()
        self.launcher.wait()


class OnRay(Local):
    """A run by `meshwright launch ray`, on a cluster that is running. A node that is lost is replaced."""

    name, place, options = "Ray", "ray", ()

    def __init__(self, cluster, folder, run):
        super().__init__(folder, run, {"RAY_ADDRESS": cluster.address})
        self.cluster = cluster

    def preempt(self):
        self._lose(graceful=True)

    def lose_a_node(self):
        self._lose(graceful=False)

    def _lose(self, graceful):
        self.cluster.remove_node(ray_node(self.cluster, self.run), allow_graceful=graceful)
        add_ray_node(self.cluster)


def ray_node(cluster, run):
    """Return a node on which a process of the run is."""
    environ = Path(f"/proc/{processes(run)[-1]}/environ").read_text().split("\0")
    (raylet,) = [line.partition("=")[2] for line in environ if line.startswith("RAY_RAYLET_PID=")]
    raylets = {node.all_processes["raylet"][0].process.pid: node for node in cluster.list_all_nodes()}
    return raylets[int(raylet)]


def add_ray_node(cluster):
    cluster.add_node(num_cpus=1, object_store_memory=80_000_000)


@contextlib.contextmanager
def ray_cluster():
    """Start three nodes with room for one process each, beside a head with none, and connect to them."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(python_environ(PATHS), RAY_USAGE_STATS_ENABLED="0", PAUSE=str(PAUSE))
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80_000_000}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(3):
            add_ray_node(made)
        ray.init(address=made.address, log_to_driver=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        os.environ.clear()
        os.environ.update(before)


class OnSlurm:
    """A job by `meshwright launch slurm`, on a cluster that is running. A node that is lost stays lost."""

    name, told_in, done = "SLURM", "the job's output", "COMPLETED 0:0"

    def __init__(self, slurm, folder, run, *options, settings=(), pause=PAUSE):
        folder.mkdir(exist_ok=True)
        self.slurm, self.folder, self.run, self.out = slurm, folder, run, folder / "out.txt"
        self.options, self.settings, self.pause = options, settings, pause
        self.lost, self.down = [], []

    def start(self):
        words = (f"output={self.out}", *self.options, "--", *train(self.run), *self.settings)
        self.number = submit(self.slurm, self.folder, "--sbatch", *words, pause=self.pause)

    def said(self):
        return self.out.read_text() if self.out.exists() else str(self.slurm.job(self.number))

    def ended(self):
        job = self.slurm.job(self.number)
        is_over = job["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")
        return f"{job['JobState']} {job['ExitCode']}" if is_over else None

    def code(self):
        if ended := self.ended():
            return ended
        # The script says so only if the tasks end with this code. The job of a lost node goes back by SLURM.
        return EXIT_AGAIN if "the job goes back to the queue" in self.said() else None

    def kill(self):
        os.kill(processes(self.run)[-1], signal.SIGKILL)

    def preempt(self):
        nodes = f"-N{len(self.slurm.names)}"
        urgent = ("sbatch", "-p", "urgent", nodes, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
        self.slurm.run(*urgent, cwd=self.slurm.folder)

    def lose_a_node(self):
        self.lost.append(self._nodes()[-1])
        self.slurm.cut_power(self.lost[-1])

    def take_down_a_node(self):
        """Tell SLURM that a node is down, which is not."""
        self.down.append(self._nodes()[-1])
        self.slurm.run("scontrol", "update", f"NodeName={self.down[-1]}", "State=DOWN", "Reason=tests")

    def _nodes(self):
        known = self.slurm.job(self.number)["NodeList"]
        return self.slurm.run("scontrol", "show", "hostnames", known).split()

    def cancel(self):
        self.slurm.run("scancel", self.number)

    def reach_the_time_limit(self):
        """Send what SLURM sends before the time limit."""
        self.slurm.run("scancel", "--batch", "--signal=USR1", self.number)

    def close(self):
        self.slurm.run("scancel", self.number, check=False)
        for name in self.lost:
            self.slurm.power_on(name)
        for name in self.down:
            self.slurm.run("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)


def submit(slurm, folder, *words, pause=PAUSE):
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


class OnJobSet:
    """The manifest of `meshwright launch jobset`, played by real processes."""

    name, told_in, done = "JobSet", "the logs of the pods", "Completed"

    def __init__(self, folder, run, pause=PAUSE):
        folder.mkdir(exist_ok=True)
        self.folder, self.run = folder, run
        job = Job(train(run), 2, name="digits", restarts=3, save_seconds=20)
        environ = {**python_environ(PATHS), "PAUSE": str(pause)}
        self.jobset = JobSet(jobset_manifest(job, Pods("none", mounts=(f"runs:{folder}",))), folder, environ)

    def start(self):
        self.jobset.start()
        self._controller = threading.Thread(target=self.jobset.play, daemon=True)
        self._controller.start()

    def said(self):
        return self.jobset.said()

    def ended(self):
        return self.jobset.ended

    def code(self):
        return self.jobset.codes[-1]

    def kill(self):
        os.kill(processes(self.run)[-1], signal.SIGKILL)

    def preempt(self):
        self.jobset.evict((0, 1))

    def lose_a_node(self):
        self.jobset.lose((0, 1))

    def cancel(self):
        self.jobset.delete()

    def close(self):
        self.jobset.delete()
        self._controller.join(300)
        self.jobset.close()


def reach(engine, step):
    """Wait until the run of an engine has reported a step."""

    def is_there():
        assert engine.ended() is None, engine.said()
        return newest(engine.run) >= step

    eventually(is_there, reason=engine.said)


def finish(engine):
    """Wait until an engine has ended, and return its exit code."""
    eventually(lambda: engine.ended() is not None, reason=engine.said)
    return engine.ended()
