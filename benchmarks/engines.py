"""What happens to a run under each engine, who is told, the exit codes, and seconds until it trains again.

A run of two processes is killed, preempted and cancelled, loses a machine, reaches its time limit, and has a
full disk: under `meshwright launch local`, on a SLURM and a Ray of three nodes, and as the pods of a JobSet,
all on this machine. Afterwards each must end with the losses of an undisturbed run. The seconds are from the
event to the report of the first step after it; those of a full disk from the moment in which there is room
again. They contain this SLURM's waiting times: 5 s before a requeued job may start, 10 s until a silent node
counts as lost, and 20 s from SIGTERM to SIGKILL. It needs root, SLURM's programs and Ray; the script says
what is missing. With `--tiny` a process is killed under `launch local`, which needs none of them.
"""

import argparse
import contextlib
import importlib.util
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from clusters.engines import Local, OnJobSet, OnRay, OnSlurm, finish, processes, ray_cluster, reach
from clusters.slurm import Slurm, missing
from end_to_end.running import losses
from eventually import eventually
from meshwright.observe._jsonl import read_jsonl


def fill_the_disk(engine):
    """Fill the disk until a process has failed for it."""
    full = engine.run.parent / "full"
    subprocess.run(["dd", "if=/dev/zero", f"of={full}", "bs=64k"], capture_output=True)
    eventually(lambda: "disk is full" in engine.said(), reason=engine.said)
    full.unlink()


EVENTS = {
    "a process is killed": lambda engine: engine.kill(),
    "preempted": lambda engine: engine.preempt(),
    "a machine is lost": lambda engine: engine.lose_a_node(),
    "the disk is full": fill_the_disk,
    "the time is nearly up": lambda engine: engine.reach_the_time_limit(),
    "cancelled": lambda engine: engine.cancel(),
}
TOLD = (
    r"the run ended because a disk is full",
    r"process \d+ (of \d+|on \S+) failed first, with [^.]*",
    r"lost by Ray: \w+",
    r"process \d+ is gone: [^,]*",
    r"stopped by [-\w]+ after step \d+",
    r"the job goes back to the queue",
    r"DUE TO [A-Z ]+",
)
"""What tells a user what has happened."""
UNTOLD = "nothing: the launcher is gone, too"


@dataclass(frozen=True)
class Outcome:
    """What followed an event."""

    told: str
    code: str
    again: str
    """How the run started again."""
    seconds: float | None


def happen(engine, event):
    """Let an event happen to a run, and return what followed."""
    reach(engine, 30)
    old, said = processes(engine.run), set(engine.said().splitlines())
    start = time.monotonic()
    EVENTS[event](engine)
    if event == "the disk is full":
        start = time.monotonic()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in old), reason=engine.said)
    gone, again, seconds = time.time(), "by itself", None

    def trains():
        reports = read_jsonl(engine.run / "metrics.jsonl")
        return any("loss" in report and report["time"] > gone for report in reports)

    eventually(lambda: engine.ended() is not None or trains(), reason=engine.said)
    if event == "cancelled":
        finish(engine)
        again = "no"
    told = told_by(line for line in engine.said().splitlines() if line not in said)
    code = exit_code(engine, told)
    if event != "cancelled":
        if engine.ended() is not None:
            again = "by the same command"
            engine.start()
        eventually(trains, reason=engine.said)
        seconds = time.monotonic() - start
    return Outcome("; ".join(told) or UNTOLD, code, again, seconds)


def told_by(lines):
    """Return what the lines tell, without the numbers of processes and steps."""
    text = "\n".join(lines)
    told = [found[0] for pattern in TOLD if (found := re.search(pattern, text))]
    told = [re.sub(r"process \d+( of \d+)?( on \S+)?", "process N", each) for each in told]
    return [re.sub(r"step \d+", "step N", each).strip() for each in told]


def exit_code(engine, told):
    """Return the exit code of the process that failed first, or else of the whole start."""
    for each in told:
        if found := re.search(r"failed first, with (signal|exit code) (\w+)", each):
            return str(128 + signal.Signals[found[2]] if found[1] == "signal" else found[2])
    code = engine.code()
    if code is None:
        return "–"
    return str(128 - code if isinstance(code, int) and code < 0 else code)


def engines(folder, disk, slurm, cluster):
    """Return functions that make a run under each engine, by the run's number."""
    return {
        "local": lambda n: Local(folder / n, disk / n),
        "SLURM": lambda n: OnSlurm(slurm, folder / n, disk / n),
        "Ray": lambda n: OnRay(cluster, folder / n, disk / n),
        "JobSet": lambda n: OnJobSet(folder / n, disk / n),
    }


def measure(folder, disk, slurm, cluster, repetitions, only, events=tuple(EVENTS)):
    """Return the outcomes by event and engine, of one engine only if it is named."""
    calm = Local(folder / "calm", disk / "calm")
    calm.start()
    assert finish(calm) == 0, calm.said()
    expected, outcomes = losses(calm.run), defaultdict(list)
    for number in range(repetitions):
        for event in events:
            for name, make in engines(folder, disk, slurm, cluster).items():
                if only not in (None, name) or (event == "the time is nearly up" and name != "SLURM"):
                    continue
                engine = make(f"{number}-{list(EVENTS).index(event)}-{name}")
                engine.start()
                try:
                    outcome = happen(engine, event)
                    if outcome.seconds:
                        assert finish(engine) == engine.done, engine.said()
                        assert losses(engine.run) == expected, f"{event}, {engine.name}: other losses"
                finally:
                    engine.close()
                outcomes[event, engine.name, engine.told_in].append(outcome)
                print(event, engine.name, outcome, file=sys.stderr, flush=True)
    return outcomes


def table(outcomes):
    """Return the table as Markdown."""
    lines = [
        "| what happens | engine | exit code | what is told, and where | starts again | trains again after |",
        "|---|---|---|---|---|---|",
    ]
    for (event, engine, where), each in outcomes.items():
        seconds = [outcome.seconds for outcome in each if outcome.seconds]
        after = (
            f"{statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})"
            if seconds
            else ""
        )
        codes = " or ".join(sorted({outcome.code for outcome in each}))
        again = " or ".join(sorted({outcome.again for outcome in each}))
        told = "; ".join(dict.fromkeys(text for outcome in each for text in outcome.told.split("; ")))
        told = told if told == UNTOLD else f"{where}: {told}"
        lines.append(f"| {event} | {engine} | {codes} | {told} | {again} | {after} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--engine", choices=("local", "SLURM", "Ray", "JobSet"), help="only this engine")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    lacking = missing() or ("" if importlib.util.find_spec("ray") else "Ray missing: pip install ray")
    if lacking:
        print(f"not measured: {lacking}")
    if lacking and not options.tiny:
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, contextlib.ExitStack() as stack:
        folder, disk = Path(name), Path(name, "disk")
        disk.mkdir()
        if options.tiny:
            print(table(measure(folder, disk, None, None, 1, "local", ("a process is killed",))))
            return
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(disk)], check=True)
        stack.callback(subprocess.run, ["umount", "--lazy", str(disk)])
        slurm = stack.enter_context(Slurm(folder, num_nodes=3))
        cluster = stack.enter_context(ray_cluster())
        print(table(measure(folder, disk, slurm, cluster, options.repetitions, options.engine)))


if __name__ == "__main__":
    main()
