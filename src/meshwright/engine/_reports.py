"""The reports of a run: what they contain, and the writers to the screen, the files and the trackers."""

import contextlib
import logging
from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax

import meshwright
from meshwright.base._internal import mesh_words
from meshwright.engine._evaluations import Evaluations, seconds_of
from meshwright.engine._messages import line_printer
from meshwright.engine._open_run import OpenRun
from meshwright.engine._settings import Settings
from meshwright.engine._training import Training
from meshwright.observe._internal import (
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
from meshwright.processes import _internal as processes
from meshwright.processes._internal import When, any_of, every
from meshwright.program._internal import Flops, count_flops, with_known_utilisation, with_utilisation
from meshwright.training._internal import halt_on_divergence, state_sizes

log = logging.getLogger("meshwright")


def heading(settings: Settings, mesh: jax.sharding.Mesh) -> tuple[str, str]:
    """Return two lines for the screen: the versions and the run, and the devices and the mesh."""
    processes = "1 process" if jax.process_count() == 1 else f"{jax.process_count()} processes"
    devices = f"{jax.device_count()} × {jax.devices()[0].device_kind}"
    axes = mesh_words(mesh.shape)
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
    """Return the writer of reports. It has already reported the sizes of the state and the compile time.

    Process 0 writes. All processes check that the loss is finite. Collective.
    """
    halt = halt_on_divergence(opened.checkpoints.wait_quietly if opened.checkpoints else lambda: None)
    opening = partial(_files_and_trackers, settings, opened, after)
    keep = opened.kept_open.reports if opened.kept_open else lambda opening, _: (opening(stack), True)
    files, is_new = processes.on_all(lambda: keep(opening, after) if processes.is_lead() else (tee(), False))
    if not processes.is_lead():
        return halt
    counted, devices = count_flops(training.step.jaxpr), list(training.layout.mesh.devices.flat)
    if is_new:
        _log_uncounted(counted)
        flops = {} if training.other_batches else {"model_flops": float(counted.model)}
        sizes = {**flops, **state_sizes(training.target)}
        files(after, {"compile_seconds": training.step.compile_seconds, **sizes})
    written = opened.machines.adding(_timed(files, step_time))
    shown = _screen(settings, training, opened.console)
    if training.other_batches:  # the operations of a step depend on the shape of its batch
        return tee(written, shown, halt)
    return tee(
        with_utilisation(written, counted, devices), with_known_utilisation(shown, counted, devices), halt
    )


def _files_and_trackers(
    settings: Settings, opened: OpenRun, after: int, stack: contextlib.ExitStack
) -> Writer:
    trackers = open_trackers(
        stack,
        *settings.logging.trackers,
        warn=settings.say or line_printer(opened.console, logging.WARNING),
    )
    if opened.directory is None:
        return trackers
    return tee(
        jsonl(opened.directory / "metrics.jsonl", resume_step=after),
        stack.enter_context(tensorboard(opened.directory, resume_step=after)),
        opened.ledger.adding(trackers),
    )


@dataclass(frozen=True)
class _Shown:
    """The screen as a writer, without values for which it has no room and which are only for the files."""

    console: Console
    left_out: Set[str]
    """The names of the values that are not shown."""
    is_first: bool
    """True to show the loss of the first step. Later calls of `fit` do not show it again."""

    def __call__(self, step: int, values: Values, /) -> None:
        self.console(step, self._rest(values))

    def first(self, step: int, values: Values, /) -> None:
        if self.is_first:
            self.console.first(step, values)

    def evaluated(self, step: int, scores: Values, /) -> None:
        self.console.evaluated(step, self._rest(scores))

    def _rest(self, values: Values) -> Values:
        return {name: value for name, value in values.items() if name not in self.left_out}


def _log_uncounted(counted: Flops) -> None:
    if counted.not_counted or counted.open_loops:
        log.info(
            "the step computes more FLOPs than are counted: operations that are not counted %s; "
            "loops of unknown length, counted as one iteration, %d",
            dict(counted.not_counted),
            counted.open_loops,
        )


def _timed(write: Writer, step_time: StepTime) -> Writer:
    """Return a writer that adds the time of one step to the reports of training."""

    def timed(step: int, values: Values, /) -> None:
        seconds = step_time.seconds() if "steps_per_second" in values else None
        write(step, values if seconds is None else {**values, "step_seconds": seconds})

    return timed


def _screen(settings: Settings, training: Training, console: Console) -> Writer:
    """Return the writer that shows reports on the screen; it does nothing if `settings` say so."""
    left_out = frozenset(seconds_of(one.name) for one in training.evaluations)
    return _Shown(console, left_out, is_first=not training.is_continued) if settings.is_shown else tee()


def report_maker(
    settings: Settings, write: Writer, when_saved: When, training: Training, evaluate: Evaluations
) -> Log:
    """Return the loop's `log`: it collects the metrics of steps, and writes a report when one is due."""
    return logger(
        write,
        # A report before each save: then a crash loses only whole reports, which the next attempt repeats.
        any_of(every(settings.logging.every), when_saved),
        per_second=settings.per_second,
        waited=lambda: training.data.wait_seconds,
        paused=lambda: evaluate.seconds,
    )


def learning_rates(
    given: Callable[[int], float] | None, training: Training, updates: Callable[[], int]
) -> dict[str, float]:
    """Return the learning rates of the last update: those that the optimizer shows, or else the given one."""
    shown = training.step.learning_rates()
    if given is None or "learning_rate" in shown:
        return shown
    return {"learning_rate": given(max(updates() - 1, 0)), **shown}


def warn_of_lost_reports(directory: Path, step: int, say: Callable[[str], None]) -> None:
    """Warn if reports before the step from which a run continues are missing, as after a power cut.

    Collective.
    """
    newest = processes.on_lead(lambda: newest_step(directory / "metrics.jsonl")) or 0
    if newest < step:
        say(f"  ✗ metrics.jsonl ends at step {newest}: the reports up to step {step} are lost")


def read_reports(directory: Path | None, *, until: int) -> dict[int, dict[str, float]]:
    """Return the reported numbers by step. Process 0 reads them for all processes. Collective."""
    if directory is None:
        return {}
    path = directory / "metrics.jsonl"
    found: dict[int, dict[str, float]] = {}
    for report in processes.on_lead(lambda: read_jsonl(path) if path.exists() else []):
        found.setdefault(int(report["step"]), {}).update(report)
    return {step: values for step, values in found.items() if step <= until}
