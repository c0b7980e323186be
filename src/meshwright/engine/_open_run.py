"""The resources of a run: its directory, its checkpoints, its screen, its signals."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from meshwright import process
from meshwright.checkpoint import Checkpoints
from meshwright.engine._directory import compiled_programs, log_file, open_directory
from meshwright.engine._errors import errors_naming, explaining_full_disk
from meshwright.engine._kept_open import KeptOpen
from meshwright.engine._messages import line_printer
from meshwright.engine._record import Record
from meshwright.engine._settings import Saving, Settings
from meshwright.errors import UsageError
from meshwright.metrics import Console, sync_jsonl
from meshwright.storage import join
from meshwright.train import RunningWatchdog, TrainState, Tx, check_finite

log = logging.getLogger("meshwright")


@dataclass(frozen=True)
class OpenRun:
    """The open resources of a run."""

    directory: Path | None
    """The directory in which its files are written; None for a run that writes none."""
    console: Console
    checkpoints: Checkpoints | None
    signals: process.Signals
    record: Record
    watch: RunningWatchdog
    say: Callable[[str], None]
    """Tells people a line."""
    detail: Callable[[str], None]
    """Tells a detail, for those who asked for all."""
    started: float
    """When the run was called for, on the clock `time.monotonic`."""
    kept_open: KeptOpen | None = None
    """The run directory, where it stays open for further trainings."""


@contextlib.contextmanager
def open_run(
    settings: Settings,
    target: TrainState,
    optimizer: Tx,
    watch: RunningWatchdog,
    started: float,
    kept_open: KeptOpen | None = None,
) -> Iterator[OpenRun]:
    """Open what a run needs, and close it however the run ends. Collective.

    Args:
      settings: how the run goes.
      target: the state as structs.
      optimizer: the optimizer, which says what of a state that is saved must be finite.
      watch: the watchdog, open already.
      started: when the run was called for, on the clock `time.monotonic`.
      kept_open: keeps the run directory open for further trainings; there are no checkpoints then.

    Raises:
      UsageError: another run has the directory, or it cannot be used.
      MeshwrightError: at the end, if the files of a run at an address could not be put there.
    """
    console = Console(None)
    say = settings.say or line_printer(console)
    detail = settings.detail or line_printer(console, is_shown=settings.is_verbose)
    checkpoints = checkpoints_for(settings, target, optimizer)
    with contextlib.ExitStack() as opened:
        signals = opened.enter_context(process.signals())
        if settings.place is None:
            record = opened.enter_context(Record(None, settings))
            yield OpenRun(None, console, checkpoints, signals, record, watch, say, detail, started)
            return
        if kept_open is not None:
            directory, record = opened.enter_context(_held_open(kept_open, settings))
            opened.enter_context(compiled_programs(settings.place if settings.compile_cache else None))
            yield OpenRun(directory, console, None, signals, record, watch, say, detail, started, kept_open)
            return
        with errors_naming("workdir"):
            warn = settings.say or line_printer(console, logging.WARNING)
            is_alone = settings.saving is not None and settings.saving.directory is None
            directory, put = opened.enter_context(open_directory(settings.place, warn, shared=is_alone))
        record = opened.enter_context(Record(directory, settings))
        if checkpoints is not None:

            def keep_reports() -> None:  # so that a run which goes on from there lacks none
                sync_jsonl(directory / "metrics.jsonl")
                put()

            checkpoints.before_commit = keep_reports
            with errors_naming(f"{settings.saving.field}.directory" if settings.saving else "workdir"):
                opened.enter_context(checkpoints)
        opened.enter_context(log_file(directory))
        opened.enter_context(compiled_programs(settings.place if settings.compile_cache else None))
        yield OpenRun(directory, console, checkpoints, signals, record, watch, say, detail, started)


@contextlib.contextmanager
def _held_open(kept_open: KeptOpen, settings: Settings) -> Iterator[tuple[Path, Record]]:
    """Yield the directory that stays open and its record, which learns of an error that ends a training."""
    directory, record = kept_open.open(settings)
    try:
        with explaining_full_disk(directory):
            yield directory, record
    except BaseException as error:
        log.exception("the training ended with an error")
        record.fail(error)
        raise


def checkpoints_for(settings: Settings, target: TrainState, optimizer: Tx) -> Checkpoints | None:
    """Return the checkpoints of a run, which are not opened yet; None if it makes none.

    Raises:
      UsageError: a setting cannot be; it is named.
    """
    saving = settings.saving
    if saving is None or settings.place is None:
        return None
    with errors_naming(f"{saving.field}.directory"):
        checkpoints = _checkpoints_at(settings.place, saving)
    with errors_naming(f"{saving.field}.names"):
        _check_can_continue(checkpoints.left_out(target))
    with errors_naming(f"{saving.field}.cast"):
        checkpoints.check(target)
    checkpoints.check_state = check_finite(optimizer, checkpoints.settled)
    return checkpoints


def newest_step(checkpoints: Checkpoints | None, target: TrainState) -> int | None:
    """Return the step of the newest checkpoint; None if there is none, or one of a part of the state.

    Collective.
    """
    if checkpoints is None or checkpoints.left_out(target):
        return None
    return process.on_lead(checkpoints.latest)


def _check_can_continue(left_out: set[str]) -> None:
    if counted := sorted(left_out & {"step", "seed"}):
        raise UsageError(f"{counted[0]} is left out, without which a run cannot go on where it stood.")


def _checkpoints_at(place: str, saving: Saving) -> Checkpoints:
    try:
        return Checkpoints(
            saving.directory or join(place, "checkpoints"),
            keep=saving.keep,
            cast=saving.cast,
            names=saving.names,
            host_nbytes=saving.host_nbytes,
        )
    except UsageError as error:
        if saving.directory is None:
            raise UsageError(f"{error}\n  Say where else to keep those of {place}.") from None
        raise
