"""The reports of a run while it goes on: to screen, log, files and trackers."""

import contextlib
import logging
from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax

import meshwright
from meshwright import old_names, process
from meshwright.engine._evaluations import Evaluations, seconds_of
from meshwright.engine._messages import line_printer
from meshwright.engine._open_run import OpenRun
from meshwright.engine._settings import Settings
from meshwright.engine._training import Training
from meshwright.metrics import (
    Console,
    Log,
    StepTime,
    Values,
    Writer,
    jsonl,
    logger,
    newest_step,
    open_trackers,
    read_jsonl,
    tee,
    tensorboard,
)
from meshwright.program import Flops, count_flops, with_known_utilisation, with_utilisation
from meshwright.train import halt_on_divergence, state_sizes
from meshwright.when import When, any_of, every

log = logging.getLogger("meshwright")


def heading(settings: Settings, mesh: jax.sharding.Mesh) -> tuple[str, str]:
    """Return what runs, and on what, a line each."""
    processes = "1 process" if jax.process_count() == 1 else f"{jax.process_count()} processes"
    devices = f"{jax.device_count()} × {jax.devices()[0].device_kind}"
    axes = " × ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    versions = f"meshwright {meshwright.__version__} · jax {jax.__version__}"
    place = "" if settings.place is None else f" · run {settings.place}"
    return f"{versions}{place}", f"{processes}, {devices} · mesh {axes}{settings.remark}"


def writers(
    stack: contextlib.ExitStack,
    settings: Settings,
    training: Training,
    opened: OpenRun,
    step_time: StepTime,
    *,
    after: int,
) -> Writer:
    """Return the writer of reports, having written how large the state is and how long the step compiled.

    All processes look whether the loss is finite; one writes.

    Args:
      stack: is given what is to be closed at the end.
      after: the step that the run goes on from.

    Raises:
      UsageError: on every process, if the package of a tracker is not installed.
    """
    halt = halt_on_divergence(opened.checkpoints.settled if opened.checkpoints else lambda: None)
    opening = partial(_files_and_trackers, settings, opened, after)
    keep = opened.kept_open.reports if opened.kept_open else lambda opening, _: (opening(stack), True)
    files, is_new = process.together(lambda: keep(opening, after) if process.is_lead() else (tee(), False))
    if not process.is_lead():
        return halt
    counted, devices = count_flops(training.step.jaxpr), list(training.layout.mesh.devices.flat)
    if is_new:
        _tell_what_is_not_counted(counted)
        flops = {} if training.other_batches else {"model_flops": float(counted.model)}
        sizes = {**flops, **state_sizes(training.target)}
        files(after, {"compile_seconds": training.step.compile_seconds, **sizes})
    written, shown = _timed(files, step_time), _screen(settings, training, opened.console)
    if training.other_batches:  # of what so many steps compute nobody knows
        return tee(written, shown, halt)
    return tee(
        with_utilisation(written, counted, devices), with_known_utilisation(shown, counted, devices), halt
    )


def _files_and_trackers(
    settings: Settings, opened: OpenRun, after: int, stack: contextlib.ExitStack
) -> Writer:
    trackers = open_trackers(
        stack,
        *settings.reporting.trackers,
        tell=settings.say or line_printer(opened.console, logging.WARNING),
    )
    if opened.directory is None:
        return trackers
    return tee(
        jsonl(opened.directory / "metrics.jsonl", after=after),
        stack.enter_context(tensorboard(opened.directory, after=after)),
        trackers,
    )


@dataclass(frozen=True)
class _Shown:
    """The screen, without what is for files, and would push the scores off it."""

    console: Console
    left_out: Set[str]
    is_first: bool
    """True if this process trains for the first time: later calls of `fit` know the loss already."""

    def __call__(self, step: int, values: Values, /) -> None:
        self.console(step, self._rest(values))

    def first(self, step: int, values: Values, /) -> None:
        if self.is_first:
            self.console.first(step, values)

    def evaluated(self, step: int, scores: Values, /) -> None:
        self.console.evaluated(step, self._rest(scores))

    def _rest(self, values: Values) -> Values:
        return {name: value for name, value in values.items() if name not in self.left_out}


def _tell_what_is_not_counted(counted: Flops) -> None:
    if counted.not_counted or counted.open_loops:
        log.info(
            "the step's FLOPs are more than is counted: %s times, %d loops of unknown length counted once",
            dict(counted.not_counted),
            counted.open_loops,
        )


def _timed(write: Writer, step_time: StepTime) -> Writer:
    """Return a writer that adds to what a report says of training how long one step took."""

    def timed(step: int, values: Values, /) -> None:
        seconds = step_time.seconds() if "steps_per_second" in values else None
        write(step, values if seconds is None else {**values, "step_seconds": seconds})

    return timed


def _screen(settings: Settings, training: Training, console: Console) -> Writer:
    """Return what shows people the numbers, if anything does."""
    left_out = frozenset(seconds_of(one.name) for one in training.evaluations)
    return _Shown(console, left_out, is_first=not training.is_continued) if settings.is_shown else tee()


def gathering(
    settings: Settings, write: Writer, when_saved: When, training: Training, evaluate: Evaluations
) -> Log:
    """Return what gathers the metrics of steps and makes reports of them."""
    return logger(
        write,
        # A report before each save: a crash then loses whole reports, which are made again.
        any_of(every(settings.reporting.every), when_saved),
        per_second=settings.reporting.per_second,
        waited=lambda: training.data.wait_seconds,
        paused=lambda: evaluate.seconds,
    )


def learning_rates(
    given: Callable[[int], float] | None, training: Training, updates: Callable[[], int]
) -> dict[str, float]:
    """Return the learning rates of the last update: those that the optimizer shows, or else the one given.

    `updates` returns how many updates were made.
    """
    shown = training.step.learning_rates()
    if given is None or "learning_rate" in shown:
        return shown
    return {"learning_rate": given(max(updates() - 1, 0)), **shown}


def tell_of_lost_reports(directory: Path, step: int, say: Callable[[str], None]) -> None:
    """Say it where the history of a run that goes on from `step` ends before that, as after a power cut."""
    newest = process.on_lead(lambda: newest_step(directory / "metrics.jsonl")) or 0
    if newest < step:
        say(f"  ✗ metrics.jsonl ends at step {newest}: what was reported up to step {step} is lost")


def reported(directory: Path | None, *, before: int) -> dict[int, dict[str, float]]:
    """Return what was reported up to a step, by step, as process 0 reads it."""
    if directory is None:
        return {}
    path = directory / "metrics.jsonl"
    found: dict[int, dict[str, float]] = {}
    for report in process.on_lead(lambda: read_jsonl(path) if path.exists() else []):
        found.setdefault(int(report["step"]), {}).update(old_names.both(report))
    return {step: values for step, values in found.items() if step <= before}
