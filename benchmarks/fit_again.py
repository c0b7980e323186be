"""What a call of `fit` takes beside its steps, when another with batches of the same shapes was made before.

Reinforcement learning, federated clients and curricula call it again and again. Each call has one step.
Beside it stand the first call, which traces and compiles, and the bare step. In a workdir, in rounds, the run
directory is open and nothing is saved; alone, each call saves a checkpoint and draws a page. Programs are
kept in a folder that is empty at the start. The bars: a later call compiles nothing, and without a save it
takes at most a tenth of the first.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import jax
import numpy as np
import optax

import meshwright as mw

MAX_SHARE = 0.1  # of the first call, where no checkpoint is due
X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
EXAMPLES = {"x": X, "y": X.sum(1)}
Calls = Callable[[mw.Deployer, Callable[[], object], int], list[float]]

compilations: list[str] = []
"""One for each program that XLA compiled, or JAX read from its cache."""


def hear(event: str, *_: object, **__: object) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        compilations.append(event)


def loss(params, batch):
    return ((batch["x"] @ params["w"] - batch["y"]) ** 2).mean()


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def alone(deployer: mw.Deployer, fit: Callable[[], object], num_calls: int) -> list[float]:
    return [seconds(fit) for _ in range(num_calls)]


def in_rounds(deployer: mw.Deployer, fit: Callable[[], object], num_calls: int) -> list[float]:
    took = [alone(deployer, fit, num_calls // 2) for _ in deployer.rounds(2)]
    return [each for calls in took for each in calls[1:]]  # the first of a loop opens the run directory


def bare_steps(trainer: mw.Trainer, num_steps: int) -> list[float]:
    step = mw.make_step(lambda params, batch, key: loss(params, batch), optax.sgd(0.1), trainer.layout)
    state, _ = step(jax.tree.map(jax.numpy.copy, trainer.state), EXAMPLES)
    took = []
    for _ in range(num_steps):
        started = time.perf_counter()
        state, metrics = step(state, EXAMPLES)
        jax.block_until_ready(metrics)
        took.append(time.perf_counter() - started)
    return took


def measure(where: str, workdir: str | None, calls: Calls, num_calls: int) -> tuple[float, int]:
    """Print what is measured, and return a later call's share of the first, and the programs it compiled."""
    deployer = mw.Deployer(0, verbose=False, workdir=workdir)
    params = {"w": np.zeros(4, np.float32)}
    trainer = mw.Trainer(deployer, params=params, loss=loss, optimizer=optax.sgd(0.1))
    fit = lambda: trainer.fit(EXAMPLES, batch_size=64, epochs=1)  # noqa: E731
    first, before = seconds(fit), len(compilations)
    took = calls(deployer, fit, num_calls)
    programs = len(compilations) - before
    bare = bare_steps(trainer, num_calls)
    print(
        f"{where}: first call {first:.2f} s; later ones {1e3 * statistics.median(took):.1f} ms "
        f"(least {1e3 * min(took):.1f}), a bare step {1e3 * statistics.median(bare):.1f} ms; "
        f"{programs} programs compiled in later ones"
    )
    return statistics.median(took) / first, programs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=60, help="at least 4")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    calls = 4 if options.tiny else options.calls
    if calls < 4:
        parser.error(
            f"--calls {calls}: there are two loops of calls, and the first of each is not counted; from 4 on"
        )
    jax.monitoring.register_event_duration_secs_listener(hear)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        jax.config.update("jax_compilation_cache_dir", None)
        shares, programs = zip(
            measure("no workdir", None, alone, calls),
            measure("a workdir, in rounds", f"{folder}/rounds", in_rounds, calls),
            measure("a workdir", f"{folder}/alone", alone, calls),
            strict=True,
        )
    if sum(programs):
        raise SystemExit("a later call compiles")
    if max(shares[:2]) > MAX_SHARE and not options.tiny:
        raise SystemExit(f"a later call takes more than {MAX_SHARE} of the first")


if __name__ == "__main__":
    main()
