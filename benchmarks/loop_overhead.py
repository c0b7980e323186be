"""What the training loop costs: host time per step of `mw.fit`, of bare loops over its step, and of redco.

For each number of devices everything runs in one process, in rounds in which all take turns. The main
thread's CPU time is what the loop costs the host; other work on the machine hardly disturbs it. Wall
time holds the computing too, which on virtual devices is most of it. The bar: at most 1.10 × the bare loop's
main-thread CPU time, also with 100 × the examples. What is added to the leanest loop is told: microseconds
are those of the machine.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np
import optax
from peers import redco_fit
from peers.loops import Cost, Run, bare_loop, measure, on_devices, ratio, say, show, shuffled, timed

import meshwright as mw
from meshwright.cli.demo import digits

MAX_RATIO = 1.10  # of the bare loop's main-thread CPU time


@dataclass(frozen=True)
class Setting:
    """A network and a batch whose step takes a millisecond or two on two cores."""

    num_devices: int
    width: int
    batch_size: int

    def __str__(self) -> str:
        return f"{self.num_devices} device(s), network 64-{self.width}-10, batches of {self.batch_size}"


SETTINGS = (Setting(8, width=128, batch_size=64), Setting(1, width=512, batch_size=256))


class Program:
    """What all loops share: the examples, the model, its optimizer and one compiled step."""

    def __init__(self, setting: Setting):
        self.setting = setting
        self.layout = mw.Layout(mw.make_mesh("data=-1"))
        self.tx = optax.adamw(1e-3)
        self.examples, _ = digits.digits()
        self.step = mw.make_step(digits.loss, self.tx, self.layout)
        state = mw.training.abstract_state(self.init, self.tx, self.layout)
        self.compiled = self.step.compile(state, self.batches().peek())

    def init(self, key: jax.Array) -> dict[str, Any]:
        return digits.init(key, self.setting.width)

    def state(self) -> mw.TrainState:
        return mw.training.init_state(self.init, self.tx, 0, self.layout)

    def batches(self, *, copies: int = 1) -> mw.data._internal.Batches:
        examples = {name: np.repeat(x, copies, axis=0) for name, x in self.examples.items()}
        return mw.batches(examples, self.setting.batch_size, self.layout.batch_sharding)

    def shuffled(self, place: Callable[[Any], Any]) -> Iterator[Any]:
        """Yield batches for ever, shuffled by numpy and then placed."""
        rows_of = lambda rows: place({name: x[rows] for name, x in self.examples.items()})  # noqa: E731
        return shuffled(len(self.examples["label"]), self.setting.batch_size, rows_of)


def fit_loop(program: Program, nowhere: TextIO, opened: contextlib.ExitStack, *, copies: int = 1) -> Run:
    """`mw.fit` as `mw.run` calls it, but for evaluation and checkpoints."""
    directory = Path(opened.enter_context(tempfile.TemporaryDirectory()))
    console = mw.observe.Console(10**6, file=nowhere)
    events = opened.enter_context(mw.observe.tensorboard(directory))
    signals = opened.enter_context(mw.parallel.stop_signals())
    data, state = program.batches(copies=copies), program.state()
    log = mw.observe.logger(
        mw.observe.tee(mw.observe.jsonl(directory / "metrics.jsonl"), events, console),
        mw.engine.every(50),
        per_second={"examples": program.setting.batch_size},
        waited=lambda: data.wait_seconds,
    )

    def run(num_steps: int) -> int:
        nonlocal state
        state = mw.fit(
            program.step,
            state,
            data,
            max_steps=int(state.step) + num_steps,
            log=log,
            on_step=console.on_step,
            stop=lambda tick: signals.stop(tick.step),
        )
        jax.block_until_ready(state)
        return num_steps

    return timed(run)


def our_loops(program: Program, nowhere: TextIO, opened: contextlib.ExitStack) -> dict[str, Run]:
    def bare(place: Callable[[Any], Any]) -> Run:
        return bare_loop(program.compiled, program.state(), program.shuffled(place))

    return {
        "bare": bare(lambda batch: jax.device_put(batch, program.layout.batch_sharding)),
        "bare, numpy batches": bare(lambda batch: batch),
        "fit": fit_loop(program, nowhere, opened),
        "fit, 10 x the examples": fit_loop(program, nowhere, opened, copies=10),
        "fit, 100 x the examples": fit_loop(program, nowhere, opened, copies=100),
    }


def redco_loops(program: Program, nowhere: TextIO) -> dict[str, Run]:
    """redco's `Trainer.fit`, and a bare loop over the step that redco compiled."""
    from flax.training.common_utils import shard

    def trainer() -> Any:
        loss = lambda params, batch: digits.loss(params, batch, None)[0]  # noqa: E731
        return redco_fit.trainer(program.init(jax.random.key(0)), loss, program.tx, nowhere)

    num_devices, batch_size = program.setting.num_devices, program.setting.batch_size
    columns = program.examples
    examples = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    stepped = trainer()
    stepped.setup_running_step(dummy_batch=None)
    redco_step, keys = stepped._p_train_step, np.zeros((num_devices, 2), np.uint32)  # it has no public name
    batches = program.shuffled(lambda batch: jax.tree.map(shard, batch))
    return {
        "redco's step, bare": bare_loop(
            lambda state, batch: redco_step(keys, state, batch), stepped.state, batches
        ),
        "redco's fit": redco_fit.fit_loop(
            trainer(), examples, batch_size // num_devices, len(examples) // batch_size, nowhere
        ),
    }


def judge(costs: dict[str, Cost]) -> bool:
    """Print how `fit` compares, and return whether it meets the bars."""
    bare, leanest = costs["bare"], costs["bare, numpy batches"]
    added = statistics.median(a - b for a, b in zip(costs["fit"].main, leanest.main, strict=True))
    print(f"  fit adds {added:.0f} µs of CPU to the leaner bare loop")
    ratios = {name: ratio(costs[name].main, bare.main) for name in ("fit", "fit, 100 x the examples")}
    for name, share in ratios.items():
        say(share <= MAX_RATIO, f"{name}: {share:.2f} of the bare loop's CPU, bar {MAX_RATIO:.2f}")
    return max(ratios.values()) <= MAX_RATIO


def measure_here(setting: Setting, options: argparse.Namespace) -> dict[str, Any]:
    program = Program(setting)
    with contextlib.ExitStack() as opened, Path(os.devnull).open("w") as nowhere:
        loops = our_loops(program, nowhere, opened)
        if options.redco:
            loops |= redco_loops(program, nowhere)
        costs = measure(loops, steps=options.steps, rounds=options.rounds)
    show(setting, costs, lambda name: "redco's step, bare" if "redco" in name else "bare")
    met = judge(costs)
    per_step = {name: vars(cost) for name, cost in costs.items()}
    return {"setting": vars(setting), "us_per_step": per_step, "met": met}


def main() -> None:
    parser = argparse.ArgumentParser(description="Host time per step of mw.fit, of bare loops, and of redco.")
    parser.add_argument("--steps", type=int, default=300, help="in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE", help="for every number measured")
    parser.add_argument("--no-redco", dest="redco", action="store_false")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    options.redco = redco_fit.is_wanted(options)
    if options.tiny:
        options.steps, options.rounds = 5, 1
    settings = SETTINGS[:1] if options.tiny else SETTINGS
    found = [on_devices(setting.num_devices, measure_here, setting, options) for setting in settings]
    if options.json:
        heading = {"date": date.today().isoformat(), "jax": jax.__version__}
        options.json.write_text(json.dumps(heading | {"found": found}, indent=2))
    sys.exit(not options.tiny and not all(each["met"] for each in found))


if __name__ == "__main__":
    main()
