"""From a description to a run: each room is opened, checked, and handed to the loop."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

import meshwright
from meshwright import process
from meshwright.checkpoint import Checkpoints
from meshwright.errors import UsageError
from meshwright.experiment import _directory
from meshwright.experiment._checks import preflight
from meshwright.experiment._evaluations import Evaluations
from meshwright.experiment._experiment import Experiment
from meshwright.experiment._policies import as_when
from meshwright.experiment._save import checkpoints_for, naming
from meshwright.experiment._stopping import Stopping
from meshwright.input import Batches, batches
from meshwright.metrics import (
    Console,
    Log,
    Writer,
    json_number,
    jsonl,
    logger,
    read_jsonl,
    tee,
    tensorboard,
)
from meshwright.sharding import Layout, make_mesh
from meshwright.train import (
    Given,
    Step,
    TrainState,
    abstract_state,
    check_given,
    fit,
    halt_on_divergence,
    make_step,
    nothing,
    state_around,
)
from meshwright.when import When, asked_once, either, every

Scores = dict[str, float]

log = logging.getLogger("meshwright")


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    step: int
    """Updates made, those of earlier attempts included."""
    scores: Mapping[str, float]
    """The results of the last evaluations: after the last step, but of those that are not made `at_end`."""
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
    layout = Layout(make_mesh(experiment.mesh), experiment.rules, experiment.batch_axis_names)
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
    evaluate = Evaluations(experiment, layout)
    step = _step(experiment, layout)
    say(_heading(experiment, layout))
    say(layout.explain({"params": target.params}))
    given = _given(experiment, target, checkpoints)
    for found in preflight(experiment, layout, target, data, evaluate.each, step):
        say(f"  ✓ {found}")
    state = _first_state(experiment, layout, target, given, data, checkpoints, say)
    first = int(state.step)
    if first >= experiment.max_step:
        say(f"  already at step {first}: max_step={experiment.max_step} asks for nothing more")
        return Outcome(first, checkpoints.scores(), 0.0, state)
    if process.is_lead():
        _directory.write_description(experiment, checkpoints, layout.mesh, origin)
    write = _writers(opened, experiment, console, checkpoints, step, after=first)
    if process.is_lead():
        opened.enter_context(console)
    when_saved = asked_once(as_when(experiment.checkpoints.when, evaluate.at))
    if experiment.stop_early is not None or evaluate.needs_reports:
        evaluate.recall(_history(experiment, before=first))
    stop = Stopping(
        signals, experiment.max_seconds, experiment.log_every, experiment.stop_early, evaluate.history
    )
    started, save = time.perf_counter(), checkpoints.saver(when_saved)
    state = fit(
        step,
        state,
        data,
        steps=experiment.max_step,
        # A platform that takes its machine back leaves time to save, and none to evaluate.
        evaluate=lambda tick, state: None if signals.ending else evaluate(tick, state),
        log=_log(experiment, tee(write, evaluate.hear), when_saved, data, paused=evaluate.seconds),
        # With all scores of the step: some may have been found in the turn before the last.
        save=lambda tick, state, data, _: save(tick, state, data, evaluate.at(tick.step)),
        beat=console.beat if process.is_lead() else nothing,
        stop=stop,
    )
    checkpoints.wait()
    if stop.interruption:
        raise stop.interruption
    outcome = Outcome(int(state.step), evaluate.newest, time.perf_counter() - started, state)
    if outcome.step < experiment.max_step:
        why = "the scores got no better: done" if stop.is_early else "the data ended"
        say(f"  {why} after {outcome.step} of {experiment.max_step} steps")
    return outcome


def _step(experiment: Experiment, layout: Layout) -> Step:
    return make_step(
        experiment.loss,
        experiment.optimizer,
        layout,
        microbatches=experiment.microbatches,
        compute_dtype=experiment.train_dtype,
    )


def _history(experiment: Experiment, *, before: int) -> dict[int, Scores]:
    """Return what was reported up to a step, by step, as process 0 reads it."""
    path = Path(experiment.run) / "metrics.jsonl"
    if not before:
        return {}
    reports = process.on_lead(lambda: read_jsonl(path) if path.exists() else [])
    history: dict[int, Scores] = {}
    for report in reports:
        history.setdefault(int(report["step"]), {}).update(report)
    return {step: found for step, found in history.items() if step <= before}


def _given(experiment: Experiment, target: TrainState, checkpoints: Checkpoints) -> Given:
    """Return what the builder of a new run gives, checked before anything compiles."""
    is_new = process.on_lead(checkpoints.latest) is None
    if experiment.init_state_builder is None or not is_new:
        return {}
    given = experiment.init_state_builder(target)
    try:
        check_given(given, target)
    except UsageError as error:
        raise UsageError(f"Experiment.init_state_builder: {error}") from None
    return given


def _first_state(
    experiment: Experiment,
    layout: Layout,
    target: TrainState,
    given: Given,
    data: Batches,
    checkpoints: Checkpoints,
    say: Callable[[str], None],
) -> TrainState:
    """Return the state to go on from, restored or fresh, and tell which."""
    tx, seed = experiment.optimizer, experiment.seed
    state = checkpoints.resume(
        target, data, otherwise=lambda: state_around(given, experiment.model, tx, seed, layout)
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


def _heading(experiment: Experiment, layout: Layout) -> str:
    processes = "1 process" if jax.process_count() == 1 else f"{jax.process_count()} processes"
    devices = f"{jax.device_count()} × {jax.devices()[0].device_kind}"
    mesh = " × ".join(f"{axis} {size}" for axis, size in layout.mesh.shape.items())
    versions = f"meshwright {meshwright.__version__} · jax {jax.__version__}"
    return f"{versions} · {processes}, {devices} · mesh {mesh} · run {experiment.run}\n"
