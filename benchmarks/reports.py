"""What metrics cost: 1,000 scalars and 20 histograms a step, reported every 50 steps, beside those of a step.

All loops are `mw.fit` in one process, in rounds in which they take turns. One step measures nothing but its
loss, one measures all, and one reports it besides, as `mw.run` does. The main thread's CPU time is what
reports cost the loop; wall time holds whatever else the machine does. The bar: what reports add to the main
thread is at most 2.5 % of the CPU time, of all threads, of the step that measures. The rest is told.
"""

import argparse
import contextlib
import functools
import json
import os
import statistics
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np
import optax
from peers.loops import Cost, Run, measure, on_devices, say, show, timed

import meshwright as mw

NUM_SCALARS, NUM_HISTOGRAMS, LOG_EVERY = 1000, 20, 50
TINY_SCALARS, TINY_HISTOGRAMS = 20, 2
WIDTH, NUM_PRODUCTS = 512, 2  # a step of 8 ms on two cores: what reports add does not grow with it
MAX_SHARE = 0.025
TX = optax.sgd(1e-6)
BATCH = {"x": np.random.default_rng(0).normal(size=(WIDTH, WIDTH)).astype(np.float32)}


def init(key: jax.Array) -> dict[str, Any]:
    return {"w": jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5}


def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
    return measured(0, 1, params, batch, key)[0]


def measured(
    num_scalars: int, num_histograms: int, params: Any, batch: Any, key: jax.Array
) -> tuple[jax.Array, dict[str, Any]]:
    y = batch["x"]
    for _ in range(NUM_PRODUCTS):
        y = jnp.tanh(y @ params["w"])
    scalars = {f"scalar/{i}": y[i % WIDTH, i // WIDTH] for i in range(num_scalars)}
    rows = jnp.split(y, [i * (WIDTH // num_histograms) for i in range(1, num_histograms)])
    histograms = {f"histogram/{i}": mw.observe.Histogram.of(rows[i]) for i in range(num_histograms)}
    return jnp.mean(y**2), scalars | histograms


def fit_loop(loss: mw.training.Loss, log: mw.observe._internal.Log) -> Run:
    layout = mw.Layout(mw.make_mesh("data=-1"))
    step, state = mw.make_step(loss, TX, layout), mw.training.init_state(init, TX, 0, layout)

    def forever() -> Any:
        while True:
            yield BATCH

    def run(num_steps: int) -> int:
        nonlocal state
        state = mw.fit(step, state, forever(), max_steps=int(state.step) + num_steps, log=log)
        jax.block_until_ready(state)
        return num_steps

    return timed(run)


def loops(
    opened: contextlib.ExitStack, nowhere: TextIO, num_scalars: int, num_histograms: int
) -> dict[str, Run]:
    directory = Path(opened.enter_context(tempfile.TemporaryDirectory()))
    events = opened.enter_context(mw.observe.tensorboard(directory))
    writers = mw.observe.tee(
        mw.observe.jsonl(directory / "metrics.jsonl"), events, mw.observe.Console(10**6, file=nowhere)
    )
    reporting = mw.observe.logger(writers, mw.engine.every(LOG_EVERY))
    all_measured = functools.partial(measured, num_scalars, num_histograms)
    return {
        "loss alone": fit_loop(loss, mw.training._internal.nothing),
        "measured": fit_loop(all_measured, mw.training._internal.nothing),
        "measured and reported": fit_loop(all_measured, reporting),
    }


def judge(costs: dict[str, Cost]) -> bool:
    """Print what reports add, and return whether the bar is met."""
    reported, silent = costs["measured and reported"], costs["measured"]
    for what, these, those in (
        ("the main thread's CPU", reported.main, silent.main),
        ("the whole CPU", reported.cpu, silent.cpu),
        ("wall time", reported.wall, silent.wall),
    ):
        added = statistics.median(a - b for a, b in zip(these, those, strict=True))
        print(f"  reports add {added:.0f} µs a step of {what}, {added / 20_000:.2%} of 20 ms")
    shares = [(a - b) / c for a, b, c in zip(reported.main, silent.main, silent.cpu, strict=True)]
    share = statistics.median(shares)
    return say(
        share <= MAX_SHARE, f"to the main thread {share:.2%} of the CPU of a step, bar {MAX_SHARE:.1%}"
    )


def measure_here(options: argparse.Namespace) -> dict[str, Any]:
    sizes = (TINY_SCALARS, TINY_HISTOGRAMS) if options.tiny else (NUM_SCALARS, NUM_HISTOGRAMS)
    with contextlib.ExitStack() as opened, Path(os.devnull).open("w") as nowhere:
        costs = measure(loops(opened, nowhere, *sizes), steps=options.steps, rounds=options.rounds)
    show("{} scalars, {} histograms".format(*sizes), costs, lambda name: "measured")
    met = judge(costs)
    return {"us_per_step": {name: vars(cost) for name, cost in costs.items()}, "met": met}


def main() -> None:
    parser = argparse.ArgumentParser(description="What 1,000 scalars and 20 histograms cost a step.")
    parser.add_argument("--steps", type=int, default=200, help="in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE", help="for every number measured")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    if options.tiny:
        options.steps, options.rounds = 5, 1
    found = on_devices(1, measure_here, options)
    if options.json:
        heading = {"date": date.today().isoformat(), "jax": jax.__version__}
        options.json.write_text(json.dumps(heading | found, indent=2))
    sys.exit(not options.tiny and not found["met"])


if __name__ == "__main__":
    main()
