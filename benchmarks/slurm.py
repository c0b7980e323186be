"""Seconds until a job of `meshwright launch slurm` trains again, after each thing that can happen to it.

A SLURM of its own runs two tasks on two of three nodes of this machine. It needs root and SLURM's programs;
the script says what is missing. The seconds are from the event to the report of the first step after it. They
contain this SLURM's waiting times: 5 s before a requeued job may start, 10 s until a silent node counts as
lost, and 20 s from SIGTERM to SIGKILL.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from clusters.slurm import Slurm, missing, wait_until
from clusters.test_slurm import Submitted


def kill(slurm, job):
    found = subprocess.run(
        ["pgrep", "-f", f"^{sys.executable}.*workdir={job.run}"], capture_output=True, text=True
    )
    subprocess.run(["kill", "-9", found.stdout.split()[-1]], check=True)


def end_time(slurm, job):
    slurm.run("scancel", "--batch", "--signal=USR1", job.number)


def preempt(slurm, job):
    nodes = f"-N{len(slurm.names)}"
    urgent = ("sbatch", "-p", "urgent", nodes, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
    slurm.run(*urgent, cwd=slurm.folder)


def lose(slurm, job):
    slurm.cut_power(slurm.run("scontrol", "show", "hostnames", slurm.job(job.number)["NodeList"]).split()[-1])


EVENTS = {
    "a task is killed": kill,
    "the time is nearly up": end_time,
    "preempted": preempt,
    "a node is lost": lose,
}


def measure(event, folder):
    """Return the seconds from an event to the first step after it."""
    with Slurm(folder, num_nodes=3) as slurm:
        job = Submitted(slurm, folder, pause=0.001)
        job.reach(30)
        said = job.said().count("continuing after step")
        start = time.monotonic()
        event(slurm, job)
        wait_until(lambda: job.said().count("continuing after step") > said, 200, job.said)
        wait_until(lambda: " step=" in job.said().rpartition("continuing after step")[2], 60, job.said)
        return time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    if lacking := missing():
        print(f"not measured: {lacking}")
        return
    seconds = {name: [] for name in EVENTS}
    for _ in range(options.repetitions):
        for name, event in EVENTS.items():
            with tempfile.TemporaryDirectory() as folder:
                seconds[name].append(measure(event, Path(folder)))
    for name, each in seconds.items():
        listed = " ".join(f"{value:.1f}" for value in sorted(each))
        print(f"{name:22} median {statistics.median(each):5.1f} s   ({listed})")


if __name__ == "__main__":
    main()
