"""From a description to a run: each room is opened, checked, and handed to the loop."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

import meshwright
from meshwright import process
from meshwright.checkpoint import Checkpoints
from meshwright.experiment import _directory
from meshwright.experiment._checks import preflight
from meshwright.experiment._experiment import Evaler, Experiment, as_when
from meshwright.experiment._save import checkpoints_for, naming
from meshwright.input import Batches, batches, padded_batches
from meshwright.metrics import Console, Log, Writer, json_number, jsonl, logger, tee, tensorboard
from meshwright.sharding import Layout, make_mesh
from meshwright.train import (
    Evaluator,
    Step,
    TrainState,
    abstract_state,
    fit,
    halt_on_divergence,
    init_state,
    make_step,
    nothing,
)
from meshwright.when import Tick, When, asked_once, either, every

Scores = dict[str, float]

log = logging.getLogger("meshwright")


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    step: int
    """Updates made, those of earlier attempts included."""
    scores: Mapping[str, float]
    """The results of the last evaluations."""
    seconds: float
    """How long this process trained and evaluated; compiling the step and restoring do not count."""
    state: TrainState
    """The state after the last update."""

    def summary(self) -> dict[str, Any]:
        """Return all but the state, as values that strict JSON can hold."""
        scores = {name: json_number(score) for name, score in self.scores.items()}
        return {"step": self.step, "scores": scores, "seconds": self.seconds}


def run(experiment: Experiment, *, origin: Mapping[str, Any] | None = None) -> Outcome:
    """Train as `experiment` says, continuing what its run directory holds.

    Call it on every process, after `process.start`.

    Args:
      experiment: what to do.
      origin: JSON-able: how to start this run again. Kept as `experiment.json`.

    Raises:
      UsageError: before anything compiles, where the parts do not fit together.
      InputError: examples or a checkpoint that cannot be used.
      DivergedError: a reported loss is not finite; nothing was saved since.
      Interrupted: told to stop; the state is saved.
    """
    layout = Layout(make_mesh(experiment.mesh), experiment.rules)
    target = abstract_state(experiment.model, experiment.optimizer, layout)
    directory = Path(experiment.run)
    checkpoints = checkpoints_for(experiment, target)
    _directory.prepare(directory)
    with contextlib.ExitStack() as opened:
        signals = opened.enter_context(process.signals())
        with naming("checkpoints.directory"):
            opened.enter_context(checkpoints)
        opened.enter_context(_directory.log_file(directory))
        outcome = _train(experiment, origin, layout, target, checkpoints, signals, opened)
    if signals.interruption:
        raise signals.interruption
    if process.is_lead():
        _directory.write_outcome(directory, outcome.summary())
    return outcome


def _train(
    experiment: Experiment,
    origin: Mapping[str, Any] | None,
    layout: Layout,
    target: TrainState,
    checkpoints: Checkpoints,
    signals: process.Signals,
    opened: contextlib.ExitStack,
) -> Outcome:
    """Check, restore and train, with what is opened on the way given to `opened`."""
    console = Console(experiment.max_step)
    say = _saying(console)
    data = opened.enter_context(contextlib.closing(_data(experiment, layout)))
    evaluate = _Evaluations(experiment, layout)
    step = make_step(experiment.loss, experiment.optimizer, layout, microbatches=experiment.microbatches)
    say(_heading(experiment, layout))
    say(layout.explain({"params": target.params}))
    for found in preflight(experiment, layout, target, data, evaluate.each, step):
        say(f"  ✓ {found}")
    state = _first_state(experiment, layout, target, data, checkpoints, say)
    first = int(state.step)
    if first >= experiment.max_step:
        say(f"  already at step {first}: max_step={experiment.max_step} asks for nothing more")
        return Outcome(first, checkpoints.scores(), 0.0, state)
    if process.is_lead():
        _directory.write_description(experiment, checkpoints, layout.mesh, origin)
    write = _writers(opened, experiment, console, checkpoints, step, after=first)
    if process.is_lead():
        opened.enter_context(console)
    when_saved = asked_once(as_when(experiment.checkpoints.when))
    started = time.perf_counter()
    state = fit(
        step,
        state,
        data,
        steps=experiment.max_step,
        # A platform that takes its machine back leaves time to save, and none to evaluate.
        evaluate=lambda tick, state: None if signals.ending else evaluate(tick, state),
        log=_log(experiment, write, when_saved, data, paused=evaluate.seconds),
        save=checkpoints.saver(when_saved),
        beat=console.beat if process.is_lead() else nothing,
        stop=lambda tick: signals.stop(tick.step),
    )
    checkpoints.wait()
    outcome = Outcome(int(state.step), evaluate.newest, time.perf_counter() - started, state)
    if outcome.step < experiment.max_step and not signals.ending:
        say(f"  the data ended after {outcome.step} of {experiment.max_step} steps")
    return outcome


def _first_state(
    experiment: Experiment,
    layout: Layout,
    target: TrainState,
    data: Batches,
    checkpoints: Checkpoints,
    say: Callable[[str], None],
) -> TrainState:
    """Return the state to go on from, restored or fresh, and tell which."""
    state = checkpoints.resume(
        target,
        data,
        otherwise=lambda: init_state(experiment.model, experiment.optimizer, experiment.seed, layout),
    )
    for warning in checkpoints.passed_over:
        say(f"  ✗ {warning}")
    if checkpoints.resumed is not None:
        say(f"  ↻ continuing after step {checkpoints.resumed}")
    return state


def _log(
    experiment: Experiment, write: Writer, when_saved: When, data: Batches, *, paused: Callable[[], float]
) -> Log:
    given = experiment.input
    return logger(
        write,
        # A report before each save: a crash then loses whole reports, which are made again.
        either(every(experiment.log_every), when_saved),
        per_second={given.item: given.batch_size * given.items_per_example},
        waited=lambda: data.wait_seconds,
        paused=paused,
    )


def _saying(console: Console) -> Callable[[str], None]:
    """Return a function that tells people: all processes' logs, and the screen of one."""

    def say(text: str) -> None:
        log.info(text.strip())
        if process.is_lead():
            console.say(text)

    return say


def _data(experiment: Experiment, layout: Layout) -> Batches:
    given = experiment.input
    return batches(
        given.examples,
        given.batch_size,
        layout.batch_sharding,
        seed=experiment.seed if given.shuffle else None,
        epochs=given.epochs,
        num_threads=given.num_threads,
    )


def _writers(
    opened: contextlib.ExitStack,
    experiment: Experiment,
    console: Console,
    checkpoints: Checkpoints,
    step: Step,
    *,
    after: int,
) -> Writer:
    """Return the writer of reports, having written how long the step took to compile.

    All processes look whether the loss is finite; one writes.
    """
    halt = halt_on_divergence(checkpoints.latest)
    if not process.is_lead():
        return halt
    directory = Path(experiment.run)
    files = tee(
        jsonl(directory / "metrics.jsonl", after=after),
        opened.enter_context(tensorboard(directory, after=after)),
    )
    _directory.write_outcome(directory, None)
    files(after, {"compile_seconds": step.compile_seconds})
    return tee(files, console, halt)


class _Evaluations:
    """All evaluators of an experiment as the loop's one `evaluate`."""

    def __init__(self, experiment: Experiment, layout: Layout):
        self.each = {name: _evaluator(evaler, layout) for name, evaler in experiment.evalers.items()}
        self.newest: Scores = {}

    def __call__(self, tick: Tick, state: Any) -> Scores | None:
        found = {name: scores for name, one in self.each.items() if (scores := one(tick, state))}
        flat = {f"{name}/{key}": value for name, scores in found.items() for key, value in scores.items()}
        self.newest |= flat
        return flat or None

    def seconds(self) -> float:
        return sum(one.seconds for one in self.each.values())


def _evaluator(evaler: Evaler, layout: Layout) -> Evaluator:
    def data() -> Iterator[Any]:
        return padded_batches(evaler.examples, evaler.batch_size, layout.batch_sharding)

    return Evaluator(evaler.measure, data, layout, as_when(evaler.when))


def _heading(experiment: Experiment, layout: Layout) -> str:
    processes = "1 process" if jax.process_count() == 1 else f"{jax.process_count()} processes"
    devices = f"{jax.device_count()} × {jax.devices()[0].device_kind}"
    mesh = " × ".join(f"{axis} {size}" for axis, size in layout.mesh.shape.items())
    versions = f"meshwright {meshwright.__version__} · jax {jax.__version__}"
    return f"{versions} · {processes}, {devices} · mesh {mesh} · run {experiment.run}\n"
