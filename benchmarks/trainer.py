"""What a whole run costs a step: `Trainer.fit`, beside a bare loop and redco's `Trainer.fit`.

All train the same model on the same list of examples, with the same optimizer and collate function,
shuffled anew each epoch. Wall time counts: it holds reading, collating, feeding, computing, reporting and
the turn of epochs, and of `Trainer.fit` all that happens between its first report and its last. The bars are
ratios to the bare loop, and redco may not be faster.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np
import optax
from peers import redco_fit
from peers.loops import Cost, Moment, Run, Span, bare_loop, measure, on_devices, ratio, say, show, shuffled
from peers.models import CNN, MLP, Model

import meshwright as mw


@dataclass(frozen=True)
class Setting:
    """A model, a mesh and a batch; how much longer a step may take; and how many epochs make a round."""

    model: Model
    num_devices: int
    tensor: int
    batch_size: int
    max_ratio: float
    num_epochs: int = 5

    def __str__(self) -> str:
        where = f"{self.num_devices} device(s), tensor={self.tensor}"
        return f"{where}, {self.model.title}, batches of {self.batch_size}"


STEPS_PER_EPOCH = 50
SETTINGS = (
    Setting(MLP, 1, 1, 64, 1.3),
    Setting(MLP, 1, 1, 1024, 1.05),
    Setting(MLP, 8, 1, 64, 1.3),
    Setting(MLP, 8, 2, 64, 1.3),
    Setting(MLP, 8, 4, 64, 1.3),
    Setting(CNN, 8, 2, 64, 1.2, num_epochs=1),
)


class Program:
    """What all loops share: the examples, the model and its optimizer."""

    def __init__(self, setting: Setting):
        self.setting, self.model, self.optimizer = setting, setting.model, optax.adamw(1e-3)
        self.examples = setting.model.examples(setting.batch_size * STEPS_PER_EPOCH)

    def trainer(self, *trackers: mw.observe._internal.Writer) -> mw.Trainer:
        deployer = mw.Deployer(seed=0, num_model_shards=self.setting.tensor, trackers=trackers)
        return mw.Trainer(
            deployer,
            loss=self.model.loss,
            optimizer=self.optimizer,
            collate=redco_fit.stacked,
            params=self.model.init(),
            rules=self.model.rules,
        )


def fit_loop(program: Program, nowhere: TextIO) -> Run:
    """`Trainer.fit`, timed from its first report on, which is made after an epoch."""
    reported: list[Moment] = []
    setting = program.setting
    with contextlib.redirect_stderr(nowhere):
        trainer = program.trainer(lambda step, values: reported.append(Moment.now()))

    def run(num_steps: int) -> Span:
        reported.clear()
        num_epochs = max(1, num_steps // STEPS_PER_EPOCH)
        with contextlib.redirect_stderr(nowhere):
            trainer.fit(
                program.examples,
                batch_size=setting.batch_size,
                max_steps=(1 + num_epochs) * STEPS_PER_EPOCH,
                logging=mw.Logging(every=STEPS_PER_EPOCH),
            )
        return Span(num_epochs * STEPS_PER_EPOCH, reported[0], reported[num_epochs])

    return run


def plain_loop(program: Program) -> Run:
    """A jitted step, as one writes it, over arrays that lie where `Trainer` puts them."""
    trainer, optimizer = program.trainer(), program.optimizer

    def step(state: tuple[Any, Any], batch: Any) -> tuple[tuple[Any, Any], jax.Array]:
        params, opt_state = state
        loss, grads = jax.value_and_grad(program.model.loss)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    state = trainer.state.params, trainer.state.opt_state
    shardings = jax.tree.map(lambda x: x.sharding, state)
    compiled = jax.jit(step, donate_argnums=0, out_shardings=(shardings, None))
    return bare_loop(compiled, state, _batches(program, trainer.layout.batch_sharding))


def _batches(program: Program, sharding: jax.NamedSharding) -> Iterator[Any]:
    def batch_of(rows: np.ndarray) -> Any:
        return jax.device_put(redco_fit.stacked([program.examples[i] for i in rows]), sharding)

    return shuffled(len(program.examples), program.setting.batch_size, batch_of)


def redco_loop(program: Program, nowhere: TextIO) -> Run:
    setting, model = program.setting, program.model
    fitted = redco_fit.trainer(model.init(), model.loss, program.optimizer, nowhere, setting.tensor)
    per_device = setting.batch_size * setting.tensor // setting.num_devices
    return redco_fit.fit_loop(fitted, program.examples, per_device, STEPS_PER_EPOCH, nowhere)


def judge(setting: Setting, costs: dict[str, Cost]) -> bool:
    """Print how `Trainer.fit` compares, and return whether it meets the bars."""
    fit = costs["Trainer.fit"].wall
    found = ratio(fit, costs["bare"].wall)
    met = say(
        found <= setting.max_ratio,
        f"Trainer.fit takes {found:.2f} of the bare loop's time, bar {setting.max_ratio}",
    )
    if "redco's fit" in costs:
        times = ratio(costs["redco's fit"].wall, fit)
        met &= say(times >= 1, f"redco's fit takes {times:.1f} times as long as Trainer.fit")
    return met


def measure_here(number: int, options: argparse.Namespace) -> dict[str, Any]:
    setting = replace(SETTINGS[number], num_epochs=1) if options.tiny else SETTINGS[number]
    program = Program(setting)
    with Path(os.devnull).open("w") as nowhere:
        loops = {"bare": plain_loop(program), "Trainer.fit": fit_loop(program, nowhere)}
        if options.redco:
            loops["redco's fit"] = redco_loop(program, nowhere)
        steps = setting.num_epochs * STEPS_PER_EPOCH
        costs = measure(loops, steps=steps, rounds=options.rounds)
    show(setting, costs, lambda name: "bare")
    met = judge(setting, costs)
    per_step = {name: vars(cost) for name, cost in costs.items()}
    return {"setting": str(setting), "us_per_step": per_step, "met": met}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Time per step of Trainer.fit, of a bare loop, and of redco."
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="some settings, from 0")
    parser.add_argument("--json", type=Path, metavar="FILE", help="for every number measured")
    parser.add_argument("--no-redco", dest="redco", action="store_false")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    options.redco = redco_fit.is_wanted(options)
    if options.tiny:
        options.only, options.rounds = [0], 1
    numbers = options.only or range(len(SETTINGS))
    found = [on_devices(SETTINGS[i].num_devices, measure_here, i, options) for i in numbers]
    if options.json:
        names = ("jax", "numpy", "optax", *(["redco"] if options.redco else []))
        versions = {name: version(name) for name in names}
        heading = {"date": date.today().isoformat(), "versions": versions}
        options.json.write_text(json.dumps(heading | {"found": found}, indent=2))
    sys.exit(not options.tiny and not all(each["met"] for each in found))


if __name__ == "__main__":
    main()
