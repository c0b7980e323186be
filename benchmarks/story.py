"""A run on a real SLURM with faults at random moments, beside an undisturbed one: losses and time lost.

A SLURM of its own runs four tasks on four of five nodes of this machine for many minutes. At random moments a
task is killed, the disk is full for some seconds, the time is nearly up, a more urgent job takes the nodes, a
node is lost for good, and process 0 is killed. At the end, each step must have been reported once, with the
loss of the undisturbed run. It needs root and SLURM's programs; the script says what is missing. `--tiny`
plays the undisturbed run alone, of two processes and a few steps.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from clusters.engines import PATHS, OnSlurm, newest, processes, reach, train
from clusters.slurm import Slurm, missing
from end_to_end.running import losses
from eventually import eventually
from meshwright.launch._local import launch_local

FULL_SECONDS = 10


def kill(number):
    def fault(job):
        for pid in processes(job.run):
            with contextlib.suppress(OSError):  # it has just ended
                if f"SLURM_PROCID={number}\0" in Path(f"/proc/{pid}/environ").read_text():
                    os.kill(pid, signal.SIGKILL)

    return fault


def fill_the_disk(job):
    full = job.run.parent / "full"
    subprocess.run(["dd", "if=/dev/zero", f"of={full}", "bs=1M"], capture_output=True)
    time.sleep(FULL_SECONDS)
    full.unlink()


FAULTS = {
    "task 2 is killed": kill(2),
    "the disk is full for 10 s": fill_the_disk,
    "the time is nearly up": OnSlurm.reach_the_time_limit,
    "preempted by a more urgent job": OnSlurm.preempt,
    "a node is lost for good": OnSlurm.lose_a_node,
    "process 0 is killed": kill(0),
}


def continued(job):
    return job.said().count("continuing after step")


def play(job, minutes, seed):
    """Let the faults happen, at random moments of equal parts of the time; print each."""
    drawn = random.Random(seed)
    names = [*FAULTS]
    drawn.shuffle(names)
    begin, part = time.monotonic(), minutes * 60 / (len(names) + 1)
    for place, name in enumerate(names):
        moment = begin + part * (place + drawn.uniform(0.2, 0.8))
        time.sleep(max(0, moment - time.monotonic()))
        at = newest(job.run)
        eventually(lambda at=at: newest(job.run) >= at + 20, reason=job.said)  # it trains
        before, start = continued(job), time.monotonic()
        FAULTS[name](job)
        eventually(lambda before=before: continued(job) > before, reason=job.said)
        eventually(lambda: " step=" in job.said().rpartition("continuing after step")[2], reason=job.said)
        seconds = time.monotonic() - start
        print(f"{start - begin:6.0f} s  {name:32} training again after {seconds:5.1f} s", flush=True)


def undisturbed(folder, steps, number):
    """Return the losses of a run of so many processes without faults, by step."""
    calm = folder / "undisturbed"
    os.environ["PYTHONPATH"] = os.pathsep.join(PATHS)
    assert launch_local([*train(calm), steps], number) == 0
    return losses(calm)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--page", type=Path, help="copy the page of the run to this file")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    if options.tiny:
        print(f"The faults are left out. {missing() or 'SLURM is installed: `make test-clusters` tries it.'}")
        with tempfile.TemporaryDirectory() as name:
            steps = sorted(undisturbed(Path(name), "max_steps=5", 2))
        print(f"{len(steps)} steps reported")
        sys.exit(steps != [1, 2, 3, 4, 5])
    if lacking := missing():
        print(f"not played: {lacking}")
        return
    steps = f"max_steps={round(options.minutes * 60 * 5.5)}"  # a step takes 0.16 s, the faults 100 s
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        disk = folder / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(disk)], check=True)
        stack.callback(subprocess.run, ["umount", "--lazy", str(disk)])
        slurm = stack.enter_context(Slurm(folder, num_nodes=5))
        job = OnSlurm(slurm, disk, disk / "run", "-n", "4", pause=0.01, settings=(steps,))
        job.start()
        reach(job, 30)
        begin = time.monotonic()
        play(job, options.minutes, options.seed)
        state = slurm.wait_for(job.number, ("COMPLETED", "FAILED", "CANCELLED"), seconds=3600)
        seconds = time.monotonic() - begin
        assert state["JobState"] == "COMPLETED", job.said()
        found, expected = losses(job.run), undisturbed(folder, steps, 4)
        print(f"{max(found)} steps, {len(found)} reports, {continued(job)} times continued, {seconds:.0f} s")
        print("losses equal those of the undisturbed run:", found == expected)
        if options.page:
            page = job.run / "report.html"
            options.page.write_bytes(page.read_bytes())
        sys.exit(found != expected)


if __name__ == "__main__":
    main()
