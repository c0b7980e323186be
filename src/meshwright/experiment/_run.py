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
from meshwright.experiment._experiment import Evaler, Experiment, as_keep, as_when, describe
from meshwright.input import Batches, batches, padded_batches
from meshwright.metrics import Console, Log, Writer, jsonl, logger, tee, tensorboard
from meshwright.sharding import Layout, make_mesh
from meshwright.train import Evaluator, Step, TrainState, abstract_state, fit, init_state, make_step, nothing
from meshwright.when import Tick, every

Scores = dict[str, float]

log = logging.getLogger("meshwright")


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    step: int
    """Updates made, those of earlier attempts included."""
    scores: Scores
    """The results of the last evaluations."""
    seconds: float
    """How long this process trained, compiling and restoring not counted."""
    state: TrainState
    """The state after the last update."""

    def summary(self) -> dict[str, Any]:
        """Return all but the state, as JSON-able values."""
        return {"step": self.step, "scores": self.scores, "seconds": self.seconds}


def run(experiment: Experiment, *, origin: Mapping[str, Any] | None = None) -> Outcome:
    """Train as `experiment` says, continuing what its run directory holds.

    Call it on every process, after `process.start`.

    Args:
      experiment: what to do.
      origin: JSON-able: how to start this run again. Kept as `experiment.json`.

    Raises:
      UsageError: before anything compiles, where the parts do not fit together.
      InputError: examples or a checkpoint that cannot be used.
      Interrupted: told to stop; the state is saved.
    """
    directory = Path(experiment.run)
    _directory.prepare(directory)
    layout = Layout(make_mesh(experiment.mesh), experiment.rules)
    target = abstract_state(experiment.model, experiment.optimizer, layout)
    console = Console(experiment.max_step)
    say = console.say if process.is_lead() else nothing
    with contextlib.ExitStack() as opened:
        opened.enter_context(_directory.log_file(directory))
        signals = opened.enter_context(process.signals())
        data = opened.enter_context(contextlib.closing(_data(experiment, layout)))
        checkpoints = opened.enter_context(
            Checkpoints(directory / "checkpoints", keep=as_keep(experiment.checkpoints.keep))
        )
        if process.is_lead():
            _directory.write_description(directory, describe(experiment), layout.mesh, origin)
        step = _checked_step(experiment, layout, target, data, say)
        state = checkpoints.resume(target, data, otherwise=lambda: _fresh_state(experiment, layout))
        if checkpoints.resumed is not None:
            say(f"  ↻ continuing after step {checkpoints.resumed}")
        for warning in checkpoints.passed_over:
            say(f"  ✗ {warning}")
        evaluate = _Evaluations(experiment, layout)
        write = _writers(opened, directory, console, step, after=int(state.step))
        if process.is_lead():
            opened.enter_context(console)
        started = time.perf_counter()
        state = fit(
            step,
            state,
            data,
            steps=experiment.max_step,
            # A platform that takes its machine back leaves time to save, and none to evaluate.
            evaluate=lambda tick, state: None if signals.interruption else evaluate(tick, state),
            log=_logger(experiment, write, data, paused=evaluate.seconds),
            save=checkpoints.saver(as_when(experiment.checkpoints.when)),
            beat=console.beat if process.is_lead() else nothing,
            stop=lambda tick: signals.stop(tick.step),
        )
        checkpoints.wait()
        outcome = Outcome(int(state.step), evaluate.newest, time.perf_counter() - started, state)
    if signals.interruption:
        raise signals.interruption
    if process.is_lead():
        _directory.write_outcome(directory, outcome.summary())
    return outcome


def _checked_step(
    experiment: Experiment, layout: Layout, target: TrainState, data: Batches, say: Callable[[str], None]
) -> Step:
    """Show what will run, check all that can be checked before, and return the compiled step."""
    say(_heading(experiment, layout))
    say(layout.explain({"params": target.params}))
    step = make_step(experiment.loss, experiment.optimizer, layout, microbatches=experiment.microbatches)
    for found in preflight(experiment, layout, target, data, step):
        say(f"  ✓ {found}")
    return step


def _fresh_state(experiment: Experiment, layout: Layout) -> TrainState:
    return init_state(experiment.model, experiment.optimizer, experiment.seed, layout)


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


def _logger(experiment: Experiment, write: Writer, data: Batches, *, paused: Callable[[], float]) -> Log:
    items = experiment.input.batch_size * experiment.input.items_per_example
    return logger(
        write,
        every(experiment.log_every),
        per_second={experiment.input.item: items},
        waited=lambda: data.wait_seconds,
        paused=paused,
    )


def _writers(
    opened: contextlib.ExitStack, directory: Path, console: Console, step: Step, *, after: int
) -> Writer:
    """Return the writer of reports, having written how long the step took to compile.

    Only one process writes.
    """
    if not process.is_lead():
        return tee()
    files = tee(
        jsonl(directory / "metrics.jsonl", after=after),
        opened.enter_context(tensorboard(directory, after=after)),
    )
    files(after, {"compile_seconds": step.compile_seconds})
    return tee(files, console)


class _Evaluations:
    """All evaluators of an experiment as the loop's one `evaluate`."""

    def __init__(self, experiment: Experiment, layout: Layout):
        self._each = {name: _evaluator(evaler, layout) for name, evaler in experiment.evalers.items()}
        self.newest: Scores = {}

    def __call__(self, tick: Tick, state: Any) -> Scores | None:
        found = {name: scores for name, one in self._each.items() if (scores := one(tick, state))}
        flat = {f"{name}/{key}": value for name, scores in found.items() for key, value in scores.items()}
        self.newest |= flat
        return flat or None

    def seconds(self) -> float:
        return sum(one.seconds for one in self._each.values())


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
