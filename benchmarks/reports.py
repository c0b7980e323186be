"""What metrics cost: 1,000 scalars and 20 histograms a step, reported every 50 steps, beside a step of 20 ms.

All loops are `mw.fit` in one process, in rounds in which they take turns. One step measures nothing but its
loss, one measures all, and one reports it besides, as `mw.run` does. The main thread's CPU time is what
reports cost the loop; wall time holds whatever else the machine does.
"""

import argparse
import contextlib
import json
import os
import statistics
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
WIDTH, NUM_PRODUCTS = 512, 2  # a step of 8 ms on two cores: what reports add does not grow with it
MAX_SHARE = 0.02
MAX_ADDED = MAX_SHARE * 20_000  # µs a step
TX = optax.sgd(1e-6)
BATCH = {"x": np.random.default_rng(0).normal(size=(WIDTH, WIDTH)).astype(np.float32)}


def init(key: jax.Array) -> dict[str, Any]:
    return {"w": jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5}


def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
    return measured(params, batch, key)[0]


def measured(params: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
    y = batch["x"]
    for _ in range(NUM_PRODUCTS):
        y = jnp.tanh(y @ params["w"])
    scalars = {f"scalar/{i}": y[i % WIDTH, i // WIDTH] for i in range(NUM_SCALARS)}
    rows = jnp.split(y, [i * (WIDTH // NUM_HISTOGRAMS) for i in range(1, NUM_HISTOGRAMS)])
    histograms = {f"histogram/{i}": mw.metrics.Histogram.of(rows[i]) for i in range(NUM_HISTOGRAMS)}
    return jnp.mean(y**2), scalars | histograms


def fit_loop(loss: mw.train.Loss, log: mw.metrics.Log) -> Run:
    layout = mw.Layout(mw.make_mesh("data=-1"))
    step, state = mw.make_step(loss, TX, layout), mw.train.init_state(init, TX, 0, layout)

    def forever() -> Any:
        while True:
            yield BATCH

    def run(num_steps: int) -> int:
        nonlocal state
        state = mw.fit(step, state, forever(), max_steps=int(state.step) + num_steps, log=log)
        jax.block_until_ready(state)
        return num_steps

    return timed(run)


def loops(opened: contextlib.ExitStack, nowhere: TextIO) -> dict[str, Run]:
    directory = Path(opened.enter_context(tempfile.TemporaryDirectory()))
    events = opened.enter_context(mw.metrics.tensorboard(directory))
    writers = mw.metrics.tee(
        mw.metrics.jsonl(directory / "metrics.jsonl"), events, mw.metrics.Console(10**6, file=nowhere)
    )
    reporting = mw.metrics.logger(writers, mw.when.every(LOG_EVERY))
    return {
        "loss alone": fit_loop(loss, mw.train.nothing),
        "measured": fit_loop(measured, mw.train.nothing),
        "measured and reported": fit_loop(measured, reporting),
    }


def judge(costs: dict[str, Cost]) -> None:
    reported, silent = costs["measured and reported"], costs["measured"]
    for what, these, those in (
        ("the main thread's CPU", reported.main, silent.main),
        ("the whole CPU", reported.cpu, silent.cpu),
        ("wall time", reported.wall, silent.wall),
    ):
        added = statistics.median(a - b for a, b in zip(these, those, strict=True))
        share = added / MAX_ADDED * MAX_SHARE
        say(added <= MAX_ADDED, f"reports add {added:.0f} µs a step of {what}, {share:.2%} of 20 ms, bar 2 %")


def measure_here(options: argparse.Namespace) -> dict[str, Any]:
    with contextlib.ExitStack() as opened, Path(os.devnull).open("w") as nowhere:
        costs = measure(loops(opened, nowhere), steps=options.steps, rounds=options.rounds)
    show(f"{NUM_SCALARS} scalars, {NUM_HISTOGRAMS} histograms", costs, lambda name: "measured")
    judge(costs)
    return {name: vars(cost) for name, cost in costs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="What 1,000 scalars and 20 histograms cost a step of 20 ms.")
    parser.add_argument("--steps", type=int, default=200, help="in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE", help="for every number measured")
    options = parser.parse_args()
    found = on_devices(1, measure_here, options)
    if options.json:
        heading = {"date": date.today().isoformat(), "jax": jax.__version__}
        options.json.write_text(json.dumps(heading | {"us_per_step": found}, indent=2))


if __name__ == "__main__":
    main()
