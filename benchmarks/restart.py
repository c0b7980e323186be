"""Seconds from the death of a process until training goes on, under `meshwright launch local --restarts`.

Four processes train a state of 100 MB and save every five steps. Again and again one process, process 0 or
two processes are killed. It measures the time from SIGKILL to the report of the first step after it, with the
start of Python and JAX, connecting, compiling from the cache, and restoring.

Then a deep network, whose step takes long to compile, goes on with three of four processes: with the step
compiled ahead for three, and without. It tells what a step takes while the others compile, against after it.

Seconds are told: there is no bar.

`--equal` looks at the end in place of the time: one of four processes is killed, then process 0 of the three
that are left; in another run, two at once. Each step must be reported once, with the loss of a run that was
resized at those steps.
"""

import argparse
import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from meshwright.observe._jsonl import read_jsonl

PROGRAM = """
import time
import jax, jax.numpy as jnp, numpy as np, optax
import meshwright as mw

def loss(params, batch):
    return sum(jnp.mean((x * batch["x"].mean()) ** 2) for x in jax.tree.leaves(params))

def slowly(example):
    time.sleep(0.01)
    return example

def experiment(workdir: str, side: int = 3600) -> mw.Experiment:
    shape = (side, side)  # two of 52 MB, which two, three and four processes can share
    each = np.random.default_rng(0).uniform(0.5, 1.5, (4096, 4)).astype(np.float32)
    return mw.Experiment(
        workdir=workdir,
        model=lambda key: {"a": jnp.ones(shape), "b": jnp.ones(shape)},
        loss=loss,
        optimizer=optax.sgd(1e5 * (side / 3600) ** 2),  # the gradient of a mean of millions is small
        input=mw.Input(mw.data.mapped(slowly, {"x": each}), batch_size=12, num_threads=1),
        max_steps=1_000_000,
        mesh="fsdp=-1",
        save=mw.Save(when=5),
        logging=mw.Logging(every=1),
    )
"""
DEEP = """

def deep_loss(params, batch):
    x = batch["x"]
    for w, v in params:
        x = x + jnp.tanh(x @ w) * jax.nn.sigmoid(x @ v)
    return jnp.mean(x**2)

def deep(workdir: str) -> mw.Experiment:
    model = lambda key: [(0.1 * jnp.ones((64, 64)), 0.1 * jnp.ones((64, 64))) for _ in range(48)]
    data = mw.data.mapped(slowly, {"x": np.ones((4096, 64), np.float32)})
    return mw.Experiment(
        workdir=workdir,
        model=model,
        loss=deep_loss,
        optimizer=optax.adam(1e-3),
        input=mw.Input(data, batch_size=12, num_threads=1),
        max_steps=1_000_000,
        mesh="data=-1",
        save=mw.Save(when=5),
        logging=mw.Logging(every=1),
    )
"""
KILLED = {"any one": (2,), "process 0": (0,), "two": (1, 3)}
KILLED_IN_TURN = ({20: (2,), 60: (0,)}, {40: (1, 3)})
"""The processes of a run of four that are killed, by the step after which they are."""
REPETITIONS = 5
LAST = 100


def newest(run):
    path = run / "metrics.jsonl"
    steps = [report["step"] for report in read_jsonl(path) if "loss" in report] if path.exists() else []
    return max(steps, default=0)


def wait_for(happened, seconds=120):
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def ranks(launcher):
    """Return the processes of the run by number, from their environment."""
    found = {}
    children = subprocess.run(
        ["pgrep", "-P", str(launcher.pid)], capture_output=True, text=True
    ).stdout.split()
    for pid in children:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        number = [line for line in environ if line.startswith(b"JAX_PROCESS_ID=")]
        if number and b"MESHWRIGHT_ONLY_COMPILE=1" not in environ:
            found[int(number[0].partition(b"=")[2])] = int(pid)
    return found


def reports_after(run, size):
    """Return whether a step is reported in what was written after the file had `size` bytes."""
    path = run / "metrics.jsonl"
    return path.stat().st_size > size and b'"loss"' in path.read_bytes()[size:]


def measure(run, launcher, numbers):
    """Kill processes, and return the seconds until a step is reported again."""
    began = newest(run)
    wait_for(lambda: newest(run) >= began + 10)  # a checkpoint lies between
    processes = ranks(launcher)
    for number in numbers:
        os.kill(processes[number], signal.SIGKILL)
    start = time.monotonic()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes.values()))
    size = (run / "metrics.jsonl").stat().st_size
    wait_for(lambda: reports_after(run, size))
    return time.monotonic() - start


@contextlib.contextmanager
def training(folder, name, *options, number=4, settings=()):
    """Start a program; yield its run, its launcher, and what reads its output."""
    run, environ = Path(folder, "run"), {**os.environ, "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": folder}
    environ["PYTHONPATH"] = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
    Path(folder, "killed.py").write_text(PROGRAM + DEEP)
    train = [sys.executable, "-m", "meshwright", "train", f"killed:{name}", "--fake-devices", "1"]
    command = [sys.executable, "-m", "meshwright", "launch", "local", "-n", str(number), *options, "--"]
    path = Path(folder, "out")
    with (
        path.open("w") as out,
        subprocess.Popen(
            [*command, *train, f"workdir={run}", *settings], env=environ, stdout=out, stderr=out
        ) as launcher,
    ):
        try:
            yield run, launcher, path.read_text
        except AssertionError:
            print(path.read_text()[-3000:])
            raise
        finally:
            launcher.send_signal(signal.SIGTERM)
            launcher.wait()


def step_seconds(run, since, until):
    """Return the median time from a step to the next one, of those between two times."""
    times = [report["time"] for report in read_jsonl(run / "metrics.jsonl") if "loss" in report]
    each = [after - before for before, after in pairwise(times) if since < before and after < until]
    return statistics.median(each)


def go_on_with_three(*options):
    """Return the seconds until three processes train after one of four was killed, those that compiling took,
    and by what factor a step takes longer while the step is compiled ahead.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        training(folder, "deep", "--restarts", "9", "--min-processes", "3", *options) as (
            run,
            launcher,
            said,
        ),
    ):
        slower = 1.0
        if not options:
            wait_for(lambda: "compiled the step ahead" in said(), 300)
            over = time.time()
            began = over - float(re.search(r"compiled the step ahead .* in ([\d.]+) s", said())[1])
            time.sleep(over - began)
            slower = step_seconds(run, began, over) / step_seconds(run, over, time.time())
        seconds = measure(run, launcher, (2,))
        compiling = float(re.findall(r"step compiled in ([\d.]+) s", said())[1])
        return seconds, compiling, slower


def losses(run):
    """Return the loss of each step, and check that each is reported once."""
    reports = [report for report in read_jsonl(run / "metrics.jsonl") if "loss" in report]
    assert [report["step"] for report in reports] == list(range(1, LAST + 1))
    return [report["loss"] for report in reports]


def equal_to_a_resized_run(kills):
    """Kill processes of a run, do the same on purpose with another, and compare their losses."""
    sizes = [4]
    for numbers in kills.values():
        sizes.append(sizes[-1] - len(numbers))
    settings = (f"max_steps={LAST}",)
    with tempfile.TemporaryDirectory() as folder:
        options = ("--restarts", "9", "--min-processes", "2", "--no-compile-ahead")
        with training(folder, "experiment", *options, settings=settings) as (run, launcher, _):
            for after, numbers in kills.items():
                wait_for(lambda after=after: newest(run) >= after, 300)
                processes = ranks(launcher)
                for number in numbers:
                    os.kill(processes[number], signal.SIGKILL)
                wait_for(lambda after=after: newest(run) > after + 20, 300)
            assert launcher.wait(300) == 0
        killed = losses(run)
        names = sorted(path.stem for path in (run / "attempts").glob("step_*.txt"))
    resized_at = [int(re.search(r"\d+", name)[0]) for name in names]
    with tempfile.TemporaryDirectory() as folder:
        for number, until in zip(sizes, (*resized_at[1:], LAST), strict=True):
            settings = (f"max_steps={until}",)
            with training(folder, "experiment", number=number, settings=settings) as (run, launcher, _):
                assert launcher.wait(300) == 0
        resized = losses(run)
    apart = max(abs(one / other - 1) for one, other in zip(killed, resized, strict=True))
    assert apart < 1e-6, apart
    print(
        f"{' then '.join(map(str, sizes))} processes, from steps {resized_at[1:]}: {LAST} steps, each once; "
        f"losses from {killed[0]:.3f} to {killed[-1]:.3f}, at most {apart:.1e} apart"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--equal", action="store_true", help="only look at the end, not at the time")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    parser.add_argument("--ahead", action="store_true", help="only the deep network that goes on with three")
    asked = parser.parse_args()
    if asked.equal:
        for kills in KILLED_IN_TURN:
            equal_to_a_resized_run(kills)
        return
    if asked.tiny:
        same_number({"the last": (1,)}, 1, number=2, settings=("side=60",))
        return
    if not asked.ahead:
        same_number(KILLED, REPETITIONS)
    for name, options in {"ahead": (), "not ahead": ("--no-compile-ahead",)}.items():
        found = [go_on_with_three(*options) for _ in range(REPETITIONS)]
        seconds, compiling, slower = (statistics.median(each) for each in zip(*found, strict=True))
        print(
            f"three of four, compiled {name}: median {seconds:.1f} s, {compiling:.1f} s of them compiling; "
            f"steps take {slower:.2f} x while compiling   ({' '.join(f'{each[0]:.1f}' for each in found)})",
            flush=True,
        )


def same_number(killed, repetitions, **options):
    seconds = {name: [] for name in killed}
    with (
        tempfile.TemporaryDirectory() as folder,
        training(folder, "experiment", "--restarts", "9", **options) as (run, launcher, _),
    ):
        wait_for(lambda: newest(run) >= 20)
        for _ in range(repetitions):
            for name, numbers in killed.items():
                seconds[name].append(measure(run, launcher, numbers))
        steps = [report["step"] for report in read_jsonl(run / "metrics.jsonl") if "loss" in report]
        assert steps == list(range(1, len(steps) + 1)), f"not each step is reported once: {steps}"
    for name, each in seconds.items():
        listed = " ".join(f"{value:.1f}" for value in sorted(each))
        print(f"{name:10} median {statistics.median(each):.1f} s   ({listed})")


if __name__ == "__main__":
    main()
