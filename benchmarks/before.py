"""Steps, saves, restores, commands and a launch beside those of another commit, as ratios of their times.

    git worktree add /tmp/before COMMIT
    python benchmarks/before.py --before /tmp/before

Each tree has a process of its own for steps, saves and restores, which is asked for some at a time, in turns;
a command is a process each time. Ratios are of neighbouring turns. Both trees train on the same batches, and
losses are compared at each turn. Without `--before` this tree is compared with itself, which shows the noise.
The bars: at most 1.1 times the time in the median, and losses equal to 1e-5.
"""

import argparse
import contextlib
import importlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).parent.parent
LARGEST_RATIO, LARGEST_DIFFERENCE = 1.1, 1e-5
NUM_STEPS, NUM_TINY_STEPS = {"text": 10, "digits": 300}, {"text": 1, "digits": 5}
COMMANDS = {
    "import": ["-c", "import meshwright as mw; mw.fit"],
    "--help": ["-m", "meshwright", "--help"],
    "runs": ["-m", "meshwright", "runs", str(HERE / "tests/golden")],
    "launch": ["-m", "meshwright", "launch", "local", "-n", "2", "--", sys.executable, "-c", ""],
    "train": ["-m", "meshwright", "train", "DEMO.digits:experiment", "workdir=RUN", "max_steps=2"],
}
"""Whole processes. `DEMO` is the package of the demos, and `RUN` a new directory."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--before", type=Path, default=HERE, help="a checkout of the other commit")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.tiny)
        return
    trees, num_turns, missed = (options.before, HERE), 1 if options.tiny else 9, []
    for name in [*NUM_STEPS, "save", "restore", *COMMANDS]:
        with contextlib.ExitStack() as stack:
            clocks = [
                command_clock(tree, name)
                if name in COMMANDS
                else server_clock(stack, tree, name, options.tiny)
                for tree in trees
            ]
            turns = [[clock() for clock in clocks] for _ in range(num_turns + 1)][1:]
        ratios = [new[0] / old[0] for old, new in turns]
        difference = max(abs(new[1] / old[1] - 1) for old, new in turns)
        old_ms, new_ms = (1e3 * statistics.median(turn[i][0] for turn in turns) for i in (0, 1))
        ratio = statistics.median(ratios)
        print(
            f"{name:<8}{old_ms:>9.1f} ms before{new_ms:>9.1f} now, ratio {ratio:.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
            + (f", losses differ by {difference:.0e} at most" if name in NUM_STEPS else ""),
            flush=True,
        )
        if difference > LARGEST_DIFFERENCE or (ratio > LARGEST_RATIO and not options.tiny):
            missed.append(name)
    if missed:
        raise SystemExit(f"over the bars: {', '.join(missed)}")


def environment(tree: Path) -> dict[str, str]:
    flags = f"--xla_force_host_platform_device_count=8 {os.environ.get('XLA_FLAGS', '')}"
    return {**os.environ, "PYTHONPATH": str(tree / "src"), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}


def command_clock(tree: Path, name: str) -> Callable[[], tuple[float, float]]:
    """Return a function that runs a command of a tree, and returns its seconds, and 1 as there is no loss."""
    demo = "meshwright.cli.demo" if (tree / "src/meshwright/cli/demo").is_dir() else "meshwright.demo"

    def clock() -> tuple[float, float]:
        with tempfile.TemporaryDirectory() as run:
            words = [word.replace("DEMO", demo).replace("RUN", run) for word in COMMANDS[name]]
            start = time.perf_counter()
            subprocess.run([sys.executable, *words], env=environment(tree), check=True, capture_output=True)
            return time.perf_counter() - start, 1.0

    return clock


def server_clock(
    stack: contextlib.ExitStack, tree: Path, name: str, is_tiny: bool
) -> Callable[[], tuple[float, float]]:
    """Return a function that asks a process of a tree for one turn: its seconds, and the loss after it."""
    words = [sys.executable, __file__, "--serve", name, *(["--tiny"] if is_tiny else [])]
    pipe = subprocess.PIPE
    process = stack.enter_context(
        subprocess.Popen(words, cwd=tree, env=environment(tree), stdin=pipe, stdout=pipe, text=True)
    )

    def clock() -> tuple[float, float]:
        process.stdin.write("\n")
        process.stdin.flush()
        seconds, loss = process.stdout.readline().split()
        return float(seconds), float(loss)

    return clock


def serve(name: str, is_tiny: bool) -> None:
    """Answer each line that is read with the seconds of a turn and the last loss."""
    turns = saves_or_restores(name, is_tiny) if name in ("save", "restore") else steps(name, is_tiny)
    for _ in sys.stdin:
        print(*next(turns), flush=True)


def module_of(*names: str):
    """Return the first module that is there: packages have other names in older commits."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise SystemExit(f"none of these modules is there: {', '.join(names)}")


def steps(example: str, is_tiny: bool) -> Iterator[tuple[float, float]]:
    """Train an example, some steps a turn."""
    import jax

    import meshwright as mw

    num_steps = (NUM_TINY_STEPS if is_tiny else NUM_STEPS)[example]
    experiment = module_of(f"meshwright.cli.demo.{example}", f"meshwright.demo.{example}").experiment()
    training = module_of("meshwright.training", "meshwright.train")
    layout = mw.Layout(mw.make_mesh(experiment.mesh), experiment.rules or ())
    state = training.init_state(experiment.model, experiment.optimizer, experiment.seed, layout)
    step = mw.make_step(experiment.loss, experiment.optimizer, layout)
    rows, size, first = experiment.input.examples, experiment.input.batch_size, 0
    while True:
        start = time.perf_counter()
        for _ in range(num_steps):
            ids = [(first + i) % len(rows) for i in range(size)]
            state, metrics = step(state, jax.device_put(batch_of(rows, ids), layout.batch_sharding))
            first += size
            jax.block_until_ready(metrics)  # many steps in flight deadlock virtual devices
        loss = metrics["loss"]
        yield time.perf_counter() - start, float(getattr(loss, "value", loss))


def saves_or_restores(name: str, is_tiny: bool) -> Iterator[tuple[float, float]]:
    """Save a state of 128 MB in 64 arrays, or restore it."""
    import jax
    import jax.numpy as jnp

    import meshwright as mw

    size = 1 << (8 if is_tiny else 19)
    state = {f"layer{i}": jnp.full((8, size // 8), i, jnp.float32) for i in range(64)}
    folder = Path(tempfile.mkdtemp())
    try:
        with mw.Checkpoints(folder / "checkpoints") as checkpoints:
            checkpoints.save(0, state)
            checkpoints.wait()
            step = 0
            while True:
                step += 1
                start = time.perf_counter()
                if name == "save":
                    checkpoints.save(step, state)
                    checkpoints.wait()
                else:
                    jax.block_until_ready(checkpoints.resume(state, None, otherwise=dict))
                yield time.perf_counter() - start, 1.0
    finally:
        shutil.rmtree(folder)


def batch_of(rows, ids):
    import jax
    import numpy as np

    if hasattr(rows, "__getitems__"):
        return rows.__getitems__(ids)
    if isinstance(rows, dict):
        return jax.tree.map(lambda x: x[np.asarray(ids)], rows)
    return jax.tree.map(lambda *x: np.stack(x), *(rows[i] for i in ids))


if __name__ == "__main__":
    main()
