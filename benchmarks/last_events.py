"""Signals in the last second of a run of two processes: how the launch ends.

Two processes train by `meshwright launch local -n 2`. SIGINT or SIGTERM comes to the launcher, or to one of
the processes, at one of the last twenty events of the run: when the launcher prints one of its last lines, or
so many hundredths of a second after the last report. The bar: no launch hangs, and none ends with 134, 139 or
143, or as if a process had failed, as all is saved.
"""

import argparse
import collections
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from meshwright.base._text import aligned

STEPS = 12
EXPERIMENT = f"""
import time, jax, jax.numpy as jnp, numpy as np, optax, meshwright as mw

def experiment(workdir: str) -> mw.Experiment:
    loss = lambda params, batch: ((batch["x"] @ params["w"]) ** 2).mean()
    data = mw.Input({{"x": np.ones((64, 4), np.float32)}}, batch_size=8)
    init = lambda key: {{"w": jnp.ones((4, 2))}}
    pause = lambda step, values: time.sleep(0.1)
    return mw.Experiment(
        workdir, init, loss, optax.sgd(0.01), data, max_steps={STEPS},
        save=mw.Save(when=4), logging=mw.Logging(every=1, trackers=(pause,)),
    )
"""
EVENTS = (
    *(f"step={step}/{STEPS}" for step in range(STEPS - 9, STEPS + 1)),
    *(0.06 * i for i in range(1, 11)),
)
"""The last reports, and seconds after the last one."""
TARGETS = ("launcher", "process 0", "process 1")
LIMIT_SECONDS = 45
SAVED_CODES = (0, 75, 130)


def children(pid: int) -> list[int]:
    """Return the children of a process, in the order of their starts."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted(int(child) for path in tasks for child in path.read_text().split())


def play(folder: Path, number: int, event: str | float, target: str) -> tuple[str, str]:
    """Send a signal to a run at an event; return its exit code, or that it hung, and what it printed."""
    command = ["launch", "local", "-n", "2", "--", sys.executable, "-m", "meshwright"]
    words = ["train", "small:experiment", "workdir=run", "--fake-devices", "1"]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "meshwright", *command, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines, sent = [], False

    def send() -> None:
        pids = [launcher.pid, *children(launcher.pid)]
        if (place := TARGETS.index(target)) < len(pids):  # else the process has ended
            try:
                os.kill(pids[place], number)
            except ProcessLookupError:
                return

    guard = threading.Timer(LIMIT_SECONDS, launcher.kill)
    guard.start()
    word = event if isinstance(event, str) else f"step={STEPS}/{STEPS}"
    for line in launcher.stdout:
        lines.append(line)
        if not sent and word in line:
            sent = True
            time.sleep(0 if isinstance(event, str) else event)
            send()
    code, is_hung, text = launcher.wait(), not guard.is_alive(), "".join(lines)
    guard.cancel()
    return "hung" if is_hung or "still running --grace seconds" in text else str(code), text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--number", type=int, default=300, help="how many runs to play (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="draws the signal, the event and its target")
    parser.add_argument("--tiny", action="store_true", help="play two runs")
    options = parser.parse_args()
    draw, codes, bad = random.Random(options.seed), collections.defaultdict(collections.Counter), 0
    for i in range(2 if options.tiny else options.number):
        number = draw.choice((signal.SIGINT, signal.SIGTERM))
        event, target = EVENTS[i % len(EVENTS)], draw.choice(TARGETS)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "small.py").write_text(EXPERIMENT)
            code, text = play(Path(folder), number, event, target)
        codes[f"{number.name} to {target}"][code] += 1
        if code not in map(str, SAVED_CODES):
            bad += 1
            print(f"{i}: {number.name} to {target} at {event}: {code}\n{text}", file=sys.stderr, flush=True)
    names = sorted(
        {code for counter in codes.values() for code in counter}, key=lambda name: (len(name), name)
    )
    rows = [(kind, *(str(counter[name]) for name in names)) for kind, counter in sorted(codes.items())]
    print("\n".join(aligned([("signal", *names), *rows], right=range(1, len(names) + 1))))
    print(f"{bad} hung, or ended as no run that is saved should")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
