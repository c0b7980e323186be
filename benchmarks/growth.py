"""How the start of training grows with the number of arrays: whole processes up to the end of the first step.

A bare program is `jax.jit` of the gradient and the update, with donated arguments that a jitted function
made. Beside it, the same model through `mw.make_step`, `mw.run` and `mw.Trainer`, compile cache off. What
counts are the CPU seconds of the process, over all its threads, imports and compiling included. Programs take
turns, since other work on the machine disturbs CPU seconds too, where cores are shared. The layers are small,
so that nothing hides what they cost by being many. The bar allows, beyond a ratio to the bare program, a
share of its start: of the CPU seconds of a bare program of two arrays, which are mostly imports.
"""

import argparse
import functools
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

MAX_RATIO, MAX_ADDED = 1.5, 0.9
"""Of the bare program's CPU seconds, and beyond that of those of its start."""
START = "start of the bare program"
WIDTH, BATCH_SIZE = 16, 8
DEFAULT_ROUNDS = {100: 7, 1000: 5, 5000: 2}

Loss = Callable[..., Any]


def model(num_arrays: int) -> tuple[Callable[[Any], Any], Loss, dict[str, Any]]:
    """Return what makes the parameters, the loss, and examples: a chain of layers of two arrays each."""
    import jax.numpy as jnp
    import numpy as np

    names = [f"layer{i}" for i in range(num_arrays // 2)]

    def init(key: Any) -> dict[str, Any]:
        return {name: {"kernel": jnp.eye(WIDTH), "bias": jnp.zeros(WIDTH)} for name in names}

    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for name in names:
            x = x @ params[name]["kernel"] + params[name]["bias"]
        return jnp.mean((x - batch["y"]) ** 2)

    draw = np.random.default_rng(0).normal
    return init, loss, {name: draw(size=(8 * BATCH_SIZE, WIDTH)).astype(np.float32) for name in "xy"}


def bare(init: Any, loss: Loss, examples: dict[str, Any]) -> None:
    import jax
    import optax

    tx = optax.sgd(0.1)

    @jax.jit
    def first(seed: Any) -> Any:
        params = init(jax.random.key(seed))
        return params, tx.init(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, opt_state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    ended(step(*first(0), {name: x[:BATCH_SIZE] for name, x in examples.items()}))


def made_step(init: Any, loss: Loss, examples: dict[str, Any]) -> None:
    import optax

    import meshwright as mw

    layout, tx = mw.Layout(mw.make_mesh("data=-1")), optax.sgd(0.1)
    step = mw.make_step(lambda params, batch, key: loss(params, batch), tx, layout)
    ended(
        step(
            mw.training.init_state(init, tx, 0, layout),
            {name: x[:BATCH_SIZE] for name, x in examples.items()},
        )
    )


def experiment(init: Any, loss: Loss, examples: dict[str, Any]) -> None:
    import optax

    import meshwright as mw

    with tempfile.TemporaryDirectory() as directory:
        mw.run(
            mw.Experiment(
                workdir=f"{directory}/run",
                model=init,
                loss=lambda params, batch, key: loss(params, batch),
                optimizer=optax.sgd(0.1),
                input=mw.Input(examples, BATCH_SIZE),
                max_steps=2,
                logging=mw.Logging(every=1, trackers=(ended_at_first,)),
                compile=mw.Compile(cache=False),
            )
        )


def trainer(init: Any, loss: Loss, examples: dict[str, Any]) -> None:
    import jax
    import optax

    import meshwright as mw

    with tempfile.TemporaryDirectory() as directory:
        deployer = mw.Deployer(seed=0, workdir=directory, trackers=(ended_at_first,))
        params = jax.jit(init)(jax.random.key(0))
        training = mw.Trainer(deployer, loss=loss, optimizer=optax.sgd(0.1), params=params)
        training.fit(examples, batch_size=BATCH_SIZE, max_steps=2, logging=mw.Logging(every=1))


def ended_at_first(step: int, values: Any) -> None:
    """Be a tracker. The report of the first step holds its numbers, so it has been computed."""
    if step == 1:
        ended(None)


def ended(outputs: Any) -> None:
    """Tell how much was spent until `outputs` are there, and leave."""
    import jax

    jax.block_until_ready(outputs)
    spent = resource.getrusage(resource.RUSAGE_SELF)
    sys.stderr.write(f"\n{spent.ru_utime + spent.ru_stime} {spent.ru_maxrss / 1024}\n")
    sys.stderr.flush()
    os._exit(0)


PROGRAMS = {"bare": bare, "make_step": made_step, "Experiment": experiment, "Trainer": trainer}


def run(program: str, num_arrays: int) -> tuple[float, float]:
    """Return the CPU seconds of a process, and its MB."""
    arguments = [sys.executable, __file__, "--only", program, str(num_arrays)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"} | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or each process compiles Python's sources again
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{program} of {num_arrays} arrays failed:\n{done.stderr}")
    seconds, megabytes = map(float, done.stderr.split()[-2:])
    return seconds, megabytes


def measure(num_arrays: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in (START, *PROGRAMS)}
    for _ in range(rounds):
        found[START].append(run("bare", 2))
        for name in PROGRAMS:
            found[name].append(run(name, num_arrays))
    return found


def show(num_arrays: int, found: dict[str, list[tuple[float, float]]]) -> bool:
    """Print the medians, and return whether all of ours meet the bar, by the median over the rounds."""
    start_seconds, bare_seconds = ([seconds for seconds, _ in found[name]] for name in (START, "bare"))
    print(f"\n{num_arrays} arrays, {len(bare_seconds)} rounds{'':10}{'CPU s':>8}{'ratio':>8}{'MB':>8}")
    all_meet = True
    for name, spent in found.items():
        seconds = [each for each, _ in spent]
        ratios = [a / b for a, b in zip(seconds, bare_seconds, strict=True)]
        beyond = statistics.median(
            a - MAX_RATIO * b - MAX_ADDED * start
            for a, b, start in zip(seconds, bare_seconds, start_seconds, strict=True)
        )
        megabytes = statistics.median(each for _, each in spent)
        meets = beyond <= 0
        all_meet &= meets
        mark = "" if name in (START, "bare") else f"  {'✓' if meets else '✗'} {-beyond:+.2f} s below the bar"
        print(
            f"{name:34}{statistics.median(seconds):8.2f}{statistics.median(ratios):8.2f}{megabytes:8.0f}{mark}"
        )
    return all_meet


def show_exponents(found: dict[int, dict[str, list[tuple[float, float]]]]) -> None:
    """Print by which power of the number of arrays the CPU seconds grow, from one size to the next."""
    sizes = sorted(found)
    for name in PROGRAMS:
        medians = [statistics.median(seconds for seconds, _ in found[size][name]) for size in sizes]
        slopes = [
            f"{math.log(medians[i + 1] / medians[i]) / math.log(sizes[i + 1] / sizes[i]):.2f}"
            for i in range(len(sizes) - 1)
        ]
        print(f"{name:34}grows by the power {', '.join(slopes)}")


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU seconds to the end of the first step, by arrays.")
    parser.add_argument("--arrays", type=int, nargs="+", default=list(DEFAULT_ROUNDS))
    parser.add_argument("--rounds", type=int, help="of each size; by default fewer of the largest")
    parser.add_argument("--json", type=Path, metavar="FILE", help="for every number measured")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    parser.add_argument("--only", nargs=2, metavar=("PROGRAM", "ARRAYS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        program, num_arrays = options.only
        return PROGRAMS[program](*model(int(num_arrays)))
    if options.tiny:
        options.arrays, options.rounds = [4], 1
    found = {size: measure(size, options.rounds or DEFAULT_ROUNDS.get(size, 3)) for size in options.arrays}
    met = [show(size, each) for size, each in found.items()]
    if len(found) > 1:
        print()
        show_exponents(found)
    print(f"\n  {'✓' if all(met) else '✗'} bar: {MAX_RATIO} × the bare program + {MAX_ADDED} × its start")
    if options.json:
        heading = {"date": date.today().isoformat(), "jax": version("jax")}
        options.json.write_text(json.dumps(heading | {"cpu_seconds_and_mb": found}, indent=2))
    sys.exit(not options.tiny and not all(met))


if __name__ == "__main__":
    main()
