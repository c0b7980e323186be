"""What a call of `fit` takes beside its steps, when another with batches of the same shapes was made before.

Reinforcement learning, federated clients and curricula call it again and again. Each call has one step.
Beside it stand the first call, which traces and compiles, and the bare step.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import jax
import numpy as np
import optax

import meshwright as mw

MAX_MS = 10  # beside the steps, without a workdir


def loss(params, batch):
    return ((batch["x"] @ params["w"] - batch["y"]) ** 2).mean()


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=60)
    options = parser.parse_args()
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    examples = {"x": x, "y": x.sum(1)}
    missed = False
    for where in ("no workdir", "a workdir"):
        workdir = None if where == "no workdir" else tempfile.mkdtemp()
        deployer = mw.Deployer(0, verbose=False, workdir=workdir)
        made = mw.Trainer(
            deployer, params={"w": np.zeros(4, np.float32)}, loss=loss, optimizer=optax.sgd(0.1)
        )
        fit = lambda made=made: made.fit(examples, batch_size=64, epochs=1)  # noqa: E731
        first = seconds(fit)
        took = [seconds(fit) for _ in range(options.calls)]
        step = mw.make_step(lambda params, batch, key: loss(params, batch), optax.sgd(0.1), made.layout)
        state = jax.tree.map(jax.numpy.copy, made.state)
        state, _ = step(state, examples)
        bare = []
        for _ in range(options.calls):
            started = time.perf_counter()
            state, metrics = step(state, examples)
            jax.block_until_ready(metrics)
            bare.append(time.perf_counter() - started)
        beside = 1e3 * (statistics.median(took) - statistics.median(bare))
        print(
            f"{where}: first call {first:.2f} s; later ones {1e3 * statistics.median(took):.1f} ms "
            f"(least {1e3 * min(took):.1f}), a bare step {1e3 * statistics.median(bare):.1f} ms"
        )
        missed |= workdir is None and beside > MAX_MS
    if missed:
        raise SystemExit(f"a call takes more than {MAX_MS} ms beside its steps")


if __name__ == "__main__":
    main()
