"""What a whole run costs a step: `mw.run` with everything on, beside bare loops over the step it compiles.

For each setting all run in one process, in rounds in which all take turns. The main thread's CPU time is
what the loop costs the host. With `--axlearn-python`, AXLearn's `SpmdTrainer` follows, in its environment.
The bars: a run takes at most twice that of the leanest loop, and with 10 × everything at most 1.25 × that
with everything.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np
import optax
from peers.loops import Cost, Moment, Run, Span, bare_loop, measure, on_devices, ratio, say, show, shuffled
from peers.models import mlp

import meshwright as mw

MAX_RUN, MAX_TEN_TIMES = 2.0, 1.25
LEANEST = "bare, numpy batches"
NOT_DUE = 10**6  # steps
WARM = 50  # steps of each run before those that are timed
NUM_EXAMPLES = 2048


@dataclass(frozen=True)
class Setting:
    """Devices, a network and a batch."""

    num_devices: int
    num_layers: int
    width: int
    batch_size: int

    def __str__(self) -> str:
        network = mlp(self.num_layers, self.width).title
        return f"{self.num_devices} device(s), {network}, batches of {self.batch_size}"


SETTINGS = (
    Setting(8, num_layers=1, width=128, batch_size=64),
    Setting(1, num_layers=1, width=512, batch_size=256),
    Setting(1, num_layers=24, width=16, batch_size=256),
)
EVERYTHING, TEN_TIMES = "run, everything on", "run, 10 x everything"


class Stopwatch:
    """A policy that is never due, notes when `num_steps` steps began and were done, and ends the run then."""

    def __init__(self, num_steps: int):
        self._num_steps = num_steps
        self.begin = self.end = Moment.now()

    def __call__(self, step: int) -> bool:
        if step == WARM:
            self.begin = Moment.now()
        if step == WARM + self._num_steps:
            self.end = Moment.now()
            raise mw.errors.Interrupted("timed; a last evaluation and save are not wanted")
        return False


class Program:
    """What all loops share: the examples, the model and its optimizer."""

    def __init__(self, setting: Setting):
        self.setting, self.model = setting, mlp(setting.num_layers, setting.width)
        rows = self.model.examples(NUM_EXAMPLES)
        self.examples = {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def measure(self, params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        logits = self.model.apply(params, batch["image"])
        return {"loss": optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])}

    def experiment(self, stopwatch: mw.processes._internal.When = mw.engine.never) -> mw.Experiment:
        """Describe a run with what every run has, and with averages, clipping and skipping in its step."""
        adam = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
        return mw.Experiment(
            workdir="",
            model=lambda key: self.model.init(),
            loss=lambda params, batch, key: self.model.loss(params, batch),
            optimizer=optax.chain(
                mw.training.skip_exploding(adam, mw.training.mean_plus_std(6)), mw.training.keep_ema(0.999)
            ),
            input=mw.Input(self.examples, batch_size=self.setting.batch_size),
            max_steps=NOT_DUE,
            rules=(),
            save=mw.Save(when=stopwatch),
        )

    def everything(self, stopwatch: mw.processes._internal.When, times: int = 1) -> mw.Experiment:
        """Describe a run with everything on; of what there may be many of, `times` as many."""
        evaluation = mw.Evaluation(self.measure, self.examples, when=NOT_DUE)
        return replace(
            self.experiment(stopwatch),
            mesh_rules=(("no such hardware", mw.parallel.override(microbatches=2)),) * 6 * times,
            rules=(mw.parallel.match(mw.parallel.optional("no such name")),)
            * 6
            * times,  # more than 64 are not described
            evaluations={f"evaluation{i}": evaluation for i in range(2 * times)},
            stop=mw.Stop(1e6, mw.engine.early_stopping("evaluation0/loss", "min", patience=5)),
            logging=mw.Logging(trackers=(_tracker,) * times),
            profile=mw.Profile(tuple(range(NOT_DUE, NOT_DUE + 5 * times))),
            watchdog=mw.Watchdog(kill=True),
        )


@contextlib.contextmanager
def _tracker() -> Iterator[mw.observe._internal.Writer]:
    yield lambda step, values: None


def run_loop(program: Program, nowhere: TextIO, described: Any) -> Run:
    """Whole runs of what `described(stopwatch)` describes, each timed in the middle."""

    def run(num_steps: int) -> Span:
        stopwatch = Stopwatch(num_steps)
        with (
            tempfile.TemporaryDirectory() as directory,
            contextlib.redirect_stderr(nowhere),
            contextlib.suppress(mw.errors.Interrupted),
        ):
            mw.run(replace(described(stopwatch), workdir=directory))
        return Span(num_steps, stopwatch.begin, stopwatch.end)

    return run


def our_loops(program: Program, nowhere: TextIO) -> dict[str, Run]:
    layout = mw.Layout(mw.make_mesh("data=-1"))
    experiment = program.experiment()
    compiled = mw.plan.compile_ahead(experiment).compiled

    def bare(place: Any) -> Run:
        state = mw.training.init_state(experiment.model, experiment.optimizer, 0, layout)
        rows_of = lambda rows: place({name: x[rows] for name, x in program.examples.items()})  # noqa: E731
        return bare_loop(compiled, state, shuffled(NUM_EXAMPLES, program.setting.batch_size, rows_of))

    return {
        "bare": bare(lambda batch: jax.device_put(batch, layout.batch_sharding)),
        LEANEST: bare(lambda batch: batch),
        "run, as it comes": run_loop(program, nowhere, program.experiment),
        EVERYTHING: run_loop(program, nowhere, program.everything),
        TEN_TIMES: run_loop(program, nowhere, lambda stopwatch: program.everything(stopwatch, times=10)),
    }


def axlearn_costs(setting: Setting, options: argparse.Namespace) -> dict[str, Cost]:
    """Let AXLearn's own Python measure `peers/axlearn_fit.py`."""
    asked = {
        "devices": setting.num_devices,
        "layers": setting.num_layers,
        "width": setting.width,
        "batch-size": setting.batch_size,
        "steps": options.axlearn_steps,
        "rounds": options.rounds,
    }
    flags = f"--xla_force_host_platform_device_count={setting.num_devices}"
    found = subprocess.run(
        [options.axlearn_python, "-m", "peers.axlearn_fit", *(f"--{name}={x}" for name, x in asked.items())],
        cwd=Path(__file__).parent,
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        check=True,
    )
    return {name: Cost(**cost) for name, cost in json.loads(found.stdout)["us_per_step"].items()}


def added(costs: dict[str, Cost], name: str, to: str) -> float:
    """Return the median over rounds of what a loop takes of the main thread beyond another, µs a step."""
    return statistics.median(a - b for a, b in zip(costs[name].main, costs[to].main, strict=True))


def measure_here(setting: Setting, options: argparse.Namespace) -> tuple[dict[str, Cost], bool]:
    """Return the costs, and whether the bars are met."""
    program = Program(setting)
    with Path(os.devnull).open("w") as nowhere:
        costs = measure(our_loops(program, nowhere), steps=options.steps, rounds=options.rounds)
    show(setting, costs, lambda name: LEANEST)
    pairs = [(name, LEANEST, MAX_RUN) for name in costs if name.startswith("run")]
    met = True
    for name, base, bar in (*pairs, (TEN_TIMES, EVERYTHING, MAX_TEN_TIMES)):
        times, more = ratio(costs[name].main, costs[base].main), added(costs, name, to=base)
        say(times <= bar, f"{name}: {times:.2f} x {base}, bar {bar}; adds {more:.0f} µs")
        met = met and times <= bar
    return costs, met


def measure_axlearn(setting: Setting, options: argparse.Namespace) -> dict[str, Cost]:
    costs = axlearn_costs(setting, options)
    show(f"AXLearn, {setting}", costs, lambda name: "bare")
    for name in costs:
        if name != "bare":
            print(f"    {name}, adds {added(costs, name, to='bare'):.0f} µs to its own bare loop")
    return {f"AXLearn, {name}": cost for name, cost in costs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Host time per step of mw.run, bare loops and AXLearn.")
    parser.add_argument("--steps", type=int, default=500, help="in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="some settings, from 0")
    parser.add_argument("--axlearn-python", metavar="PATH", help="a Python that can import axlearn")
    parser.add_argument("--axlearn-steps", type=int, default=100)
    parser.add_argument("--json", type=Path, metavar="FILE", help="for every number measured")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    if options.tiny:
        options.steps, options.rounds, options.only = 5, 1, [0]
    found, all_met = [], True
    for setting in [SETTINGS[i] for i in options.only or range(len(SETTINGS))]:
        costs, met = on_devices(setting.num_devices, measure_here, setting, options)
        all_met = all_met and met
        if options.axlearn_python:
            costs |= measure_axlearn(setting, options)
        else:
            print("  AXLearn is left out; --axlearn-python names a Python that can import it.")
        found.append({"setting": vars(setting), "us_per_step": {name: vars(c) for name, c in costs.items()}})
    if options.json:
        heading = {"date": date.today().isoformat(), "jax": jax.__version__}
        options.json.write_text(json.dumps(heading | {"found": found}, indent=2))
    sys.exit(not (all_met or options.tiny))


if __name__ == "__main__":
    main()
