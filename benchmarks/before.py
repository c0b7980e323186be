"""Training steps of the text and the digits example beside those of another commit: time and losses.

    git worktree add /tmp/before COMMIT
    python benchmarks/before.py --before /tmp/before

Each tree has a process of its own, which is asked for some steps at a time, in turns. Ratios are of
neighbouring turns. Both train on the same batches, and losses are compared at each turn. Without `--before`
this tree is held against itself, which tells the noise. The bars: at most 1.1 × the time, and losses equal
to 1e-5.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent.parent
MOST_TIME, MOST_LOSS = 1.1, 1e-5
STEPS, TINY_STEPS = {"text": 10, "digits": 300}, {"text": 1, "digits": 5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--before", type=Path, default=HERE, help="a checkout of the other commit")
    parser.add_argument("--serve", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    steps, num_turns = (TINY_STEPS, 1) if options.tiny else (STEPS, 9)
    if options.serve:
        serve(options.serve, steps[options.serve])
        return
    missed = []
    for example in steps:
        processes = [started(tree, example, options.tiny) for tree in (options.before, HERE)]
        turns = [[asked(process) for process in processes] for _ in range(num_turns + 1)][1:]
        ratio = statistics.median(now[0] / before[0] for before, now in turns)
        lowest, highest = (f(now[0] / before[0] for before, now in turns) for f in (min, max))
        furthest = max(abs(now[1] / before[1] - 1) for before, now in turns)
        milliseconds = [
            1e3 * statistics.median(turn[i][0] for turn in turns) / steps[example] for i in (0, 1)
        ]
        print(
            f"{example:<8}{milliseconds[0]:>8.1f} ms a step before{milliseconds[1]:>8.1f} now, "
            f"ratio {ratio:.2f} ({lowest:.2f} to {highest:.2f}), losses differ by {furthest:.0e} at most",
            flush=True,
        )
        for process in processes:
            process.stdin.close()
            process.wait()
        if furthest > MOST_LOSS or (ratio > MOST_TIME and not options.tiny):
            missed.append(example)
    if missed:
        raise SystemExit(f"over the bars: {', '.join(missed)}")


def started(tree: Path, example: str, tiny: bool) -> subprocess.Popen[str]:
    words = [sys.executable, __file__, "--serve", example, *(["--tiny"] if tiny else [])]
    flags = f"--xla_force_host_platform_device_count=8 {os.environ.get('XLA_FLAGS', '')}"
    env = {**os.environ, "PYTHONPATH": str(tree / "src"), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, cwd=tree, env=env, **pipes)


def asked(process: subprocess.Popen[str]) -> tuple[float, float]:
    """Return the seconds of a turn and the loss after it."""
    process.stdin.write("\n")
    process.stdin.flush()
    seconds, loss = process.stdout.readline().split()
    return float(seconds), float(loss)


def serve(example: str, num_steps: int) -> None:
    """Make some steps for each line that is read, and answer with their seconds and the last loss."""
    import importlib

    import jax

    import meshwright as mw

    made = importlib.import_module(f"meshwright.cli.demo.{example}").experiment()
    mesh = mw.make_mesh(made.mesh)
    layout = mw.Layout(mesh, made.rules or ())
    state = mw.training.init_state(made.model, made.optimizer, made.seed, layout)
    step = mw.make_step(made.loss, made.optimizer, layout)
    rows, size, start = made.input.examples, made.input.batch_size, 0
    for _ in sys.stdin:
        began = time.perf_counter()
        for _ in range(num_steps):
            ids = [(start + i) % len(rows) for i in range(size)]
            state, metrics = step(state, jax.device_put(batch_of(rows, ids), layout.batch_sharding))
            start += size
            jax.block_until_ready(metrics)  # many steps in flight deadlock virtual devices
        loss = float(value_of(metrics["loss"]))
        print(time.perf_counter() - began, loss, flush=True)


def batch_of(rows, ids):
    import jax
    import numpy as np

    if hasattr(rows, "__getitems__"):
        return rows.__getitems__(ids)
    if isinstance(rows, dict):
        return jax.tree.map(lambda x: x[np.asarray(ids)], rows)
    return jax.tree.map(lambda *x: np.stack(x), *(rows[i] for i in ids))


def value_of(metric):
    return metric.value if hasattr(metric, "value") else metric


if __name__ == "__main__":
    main()
