"""What a run tells while it goes on, and to whom."""

import contextlib
import logging
from collections.abc import Callable, Set
from functools import partial
from pathlib import Path

import jax

import meshwright
from meshwright import process
from meshwright.errors import printable
from meshwright.experiment._evaluations import seconds_of
from meshwright.experiment._experiment import Experiment
from meshwright.experiment._parts import Parts
from meshwright.input import Batches
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
from meshwright.sharding import hardware, mesh_rule
from meshwright.train import halt_on_divergence, state_sizes
from meshwright.when import When, either, every

log = logging.getLogger("meshwright")


def saying(console: Console, level: int = logging.INFO) -> Callable[[str], None]:
    """Return a function that tells people: all processes' logs, and the screen of one."""

    def say(text: str) -> None:
        is_shown = process.is_lead()
        if log.hasHandlers() or not is_shown:  # without any, Python would show it a second time
            log.log(level, text.strip())
        if is_shown:
            console.say(printable(text))

    return say


def heading(experiment: Experiment, mesh: jax.sharding.Mesh) -> str:
    """Return what runs where, as one line."""
    processes = "1 process" if jax.process_count() == 1 else f"{jax.process_count()} processes"
    devices = f"{jax.device_count()} × {jax.devices()[0].device_kind}"
    axes = " × ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    versions = f"meshwright {meshwright.__version__} · jax {jax.__version__}"
    return f"{versions} · {processes}, {devices} · mesh {axes}{_rule(experiment)} · run {experiment.run}\n"


def _rule(experiment: Experiment) -> str:
    if not experiment.mesh_rules:
        return ""
    here = hardware()
    rule = mesh_rule(experiment.mesh_rules, here)
    return f" · {f'no mesh rule for {here!r}' if rule is None else f'mesh rule {rule[0]!r}'}"


def writers(
    opened: contextlib.ExitStack,
    directory: Path,
    experiment: Experiment,
    console: Console,
    newest: Callable[[], int | None],
    parts: Parts,
    step_time: StepTime,
    *,
    after: int,
) -> Writer:
    """Return the writer of reports, having written how large the state is and how long the step compiled.

    All processes look whether the loss is finite; one writes.

    Args:
      opened: is given what is to be closed at the end.
      newest: the step of the checkpoint that a restart would take.
      after: the step that the run goes on from.

    Raises:
      UsageError: on every process, if the package of a tracker is not installed.
    """
    halt = halt_on_divergence(newest)
    opening = partial(_files_and_trackers, opened, directory, experiment, console, after)
    files = process.together(lambda: opening() if process.is_lead() else tee())
    if not process.is_lead():
        return halt
    counted, devices = count_flops(parts.step.jaxpr), list(parts.layout.mesh.devices.flat)
    _tell_what_is_not_counted(counted)
    flops = {} if parts.other_batches else {"model_flops": float(counted.model)}
    sizes = {**flops, **state_sizes(parts.target)}
    files(after, {"compile_seconds": parts.step.compile_seconds, **sizes})
    shown = _without(frozenset(map(seconds_of, experiment.evalers)), console)
    if parts.other_batches:  # of what so many steps compute nobody knows
        return tee(_timed(files, step_time), shown, halt)
    return tee(
        with_utilisation(_timed(files, step_time), counted, devices),
        with_known_utilisation(shown, counted, devices),
        halt,
    )


def _files_and_trackers(
    opened: contextlib.ExitStack, directory: Path, experiment: Experiment, console: Console, after: int
) -> Writer:
    return tee(
        jsonl(directory / "metrics.jsonl", after=after),
        opened.enter_context(tensorboard(directory, after=after)),
        open_trackers(opened, *experiment.trackers, tell=saying(console, logging.WARNING)),
    )


def _without(names: Set[str], write: Writer) -> Writer:
    """Return a writer that leaves out what is for files, and would push the scores off the screen."""

    def wrote(step: int, values: Values, /) -> None:
        write(step, {name: value for name, value in values.items() if name not in names})

    return wrote


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


def reports(
    experiment: Experiment,
    write: Writer,
    when_saved: When,
    data: Batches,
    *,
    paused: Callable[[], float],
) -> Log:
    """Return the loop's `log`."""
    given = experiment.input
    return logger(
        write,
        # A report before each save: a crash then loses whole reports, which are made again.
        either(every(experiment.log_every), when_saved),
        per_second={given.item: given.batch_size * given.items_per_example},
        waited=lambda: data.wait_seconds,
        paused=paused,
    )


def tell_of_lost_reports(directory: Path, step: int, say: Callable[[str], None]) -> None:
    """Say it where the history of a run that goes on from `step` ends before that, as after a power cut."""
    newest = process.on_lead(lambda: newest_step(directory / "metrics.jsonl")) or 0
    if newest < step:
        say(f"  ✗ metrics.jsonl ends at step {newest}: what was reported up to step {step} is lost")


def reported(directory: Path, *, before: int) -> dict[int, dict[str, float]]:
    """Return what was reported up to a step, by step, as process 0 reads it."""
    path = directory / "metrics.jsonl"
    if not before:
        return {}
    found: dict[int, dict[str, float]] = {}
    for report in process.on_lead(lambda: read_jsonl(path) if path.exists() else []):
        found.setdefault(int(report["step"]), {}).update(report)
    return {step: values for step, values in found.items() if step <= before}
