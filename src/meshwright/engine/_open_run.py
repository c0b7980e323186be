"""The open resources of a run: its directory, checkpoints, screen, signals and watchdog."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.base._internal import join
from meshwright.checkpoints._internal import Checkpoints
from meshwright.engine._directory import compiled_programs, log_file, open_directory
from meshwright.engine._errors import errors_naming, explaining_full_disk
from meshwright.engine._kept_open import KeptOpen
from meshwright.engine._ledger import LedgerKeeper
from meshwright.engine._machines import Machines
from meshwright.engine._messages import line_printer
from meshwright.engine._record import Record
from meshwright.engine._settings import Save, Settings, as_casts
from meshwright.engine._training import Training
from meshwright.errors import UsageError
from meshwright.observe._internal import Console, sync_jsonl
from meshwright.processes import _internal as processes
from meshwright.processes._internal import board_directory
from meshwright.training._internal import RunningWatchdog, TrainState, check_finite, on_board

log = logging.getLogger("meshwright")


@dataclass(frozen=True)
class OpenRun:
    """The open resources of a run."""

    directory: Path | None
    """The directory of the run's files; None for a run that writes no files."""
    console: Console
    """The screen of process 0."""
    checkpoints: Checkpoints | None
    """The checkpoints of the run; None if it saves none."""
    signals: processes.Signals
    """The signals that stop the run."""
    record: Record
    """Writes the settings, the outcome and the page."""
    watch: RunningWatchdog
    """The watchdog."""
    ledger: LedgerKeeper
    """Adds up where the seconds of the run go."""
    say: Callable[[str], None]
    """Shows a line to the user."""
    detail: Callable[[str], None]
    """Shows a detail, on the screen only if the run is verbose."""
    started: float
    """The time when the user started the run, on the clock `time.monotonic`."""
    kept_open: KeptOpen | None = None
    """The run directory if it stays open for further trainings."""
    machines: Machines = field(default_factory=Machines)
    """Reads the machines and devices of the run."""


@contextlib.contextmanager
def open_run(
    settings: Settings,
    training: Training,
    watch: RunningWatchdog,
    started: float,
    kept_open: KeptOpen | None = None,
) -> Iterator[OpenRun]:
    """Open the resources of a run, and close them however the run ends. Collective."""
    console = Console(None)
    say = settings.say or line_printer(console)
    detail = settings.detail or line_printer(console, is_shown=settings.is_verbose)
    checkpoints = checkpoints_for(settings, training)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(processes.stop_signals())
        if settings.place is None:
            record, ledger = stack.enter_context(Record(None, settings)), LedgerKeeper(None, watch.clock)
            yield OpenRun(None, console, checkpoints, signals, record, watch, ledger, say, detail, started)
            return
        if kept_open is not None:
            directory, record, ledger = stack.enter_context(_opened_before(kept_open, settings, watch))
            stack.enter_context(compiled_programs(settings.compile.cache))
            yield OpenRun(
                directory, console, None, signals, record, watch, ledger, say, detail, started, kept_open
            )
            return
        with errors_naming("workdir"):
            warn = settings.say or line_printer(console, logging.WARNING)
            has_checkpoints = settings.save is not None and settings.save.directory is None
            directory, upload = stack.enter_context(
                open_directory(settings.place, warn, shared=has_checkpoints)
            )
        record = stack.enter_context(Record(directory, settings))
        ledger = stack.enter_context(LedgerKeeper(directory, watch.clock))
        if checkpoints is not None:

            def keep_reports() -> None:  # a run that continues from the checkpoint needs all reports so far
                sync_jsonl(directory / "metrics.jsonl")
                upload()

            checkpoints.before_commit = keep_reports
            _open_checkpoints(checkpoints, training.target, warn, stack)
        stack.enter_context(log_file(directory))
        stack.enter_context(compiled_programs(settings.compile.cache))
        machines = _on_board(settings, settings.place, watch, warn, stack)
        shown = (say, detail, started, None, machines)
        yield OpenRun(directory, console, checkpoints, signals, record, watch, ledger, *shown)


def _on_board(
    settings: Settings,
    place: str,
    watch: RunningWatchdog,
    warn: Callable[[str], None],
    stack: contextlib.ExitStack,
) -> Machines:
    """Read the machine and, if there is a watchdog, tell on the board where this process stands."""
    chosen, seconds = settings.watchdog, settings.logging.machine_seconds
    if chosen is None or chosen.learned == "ignore":
        return stack.enter_context(Machines(seconds, watch.clock))
    directory = board_directory(place)
    processes.report_board(directory)
    machines = stack.enter_context(Machines(seconds, watch.clock, directory, warn))
    limits = {"shortest_seconds": chosen.shortest_seconds, "first_seconds": chosen.first_seconds}
    ends = chosen.learned == "end"
    stack.enter_context(on_board(directory, watch.clock, **limits, kill=ends, readings=machines.told))
    return machines


@contextlib.contextmanager
def _opened_before(
    kept_open: KeptOpen, settings: Settings, watch: RunningWatchdog
) -> Iterator[tuple[Path, Record, LedgerKeeper]]:
    """Yield the directory that stays open, its record and its ledger.

    The record learns of an error that ends a training.
    """
    directory, record, ledger = kept_open.open(settings, watch.clock)
    try:
        with explaining_full_disk(directory):
            yield directory, record, ledger
    except BaseException as error:
        log.exception("the training ended with an error")
        record.fail(error)
        raise


def checkpoints_for(settings: Settings, training: Training) -> Checkpoints | None:
    """Return the checkpoints of a run, which are not open yet; None if it saves none."""
    if settings.save is None or settings.place is None:
        return None
    with errors_naming("save.directory"):
        checkpoints = _checkpoints_at(settings.place, settings.save)
    with errors_naming("save.names"):
        _check_can_continue(checkpoints.left_out(training.target))
    with errors_naming("save.cast"):
        checkpoints.check(training.target)
    checkpoints.check_state = check_finite(training.optimizer, checkpoints.wait_quietly)
    return checkpoints


def _open_checkpoints(
    checkpoints: Checkpoints,
    target: TrainState,
    warn: Callable[[str], None],
    stack: contextlib.ExitStack,
) -> None:
    with errors_naming("save.directory"):
        stack.enter_context(checkpoints)
    if checkpoints.host_memory:
        checkpoints.host_memory.on_skip = lambda text: warn(f"  ! {text}")
        with errors_naming("save.memory"):
            checkpoints.check_memory(target)


def newest_step(checkpoints: Checkpoints | None, target: TrainState) -> int | None:
    """Return the step of the newest checkpoint, or None if a run must make a first state. Collective.

    A run needs its first state also if checkpoints contain only a part of the state.
    """
    if checkpoints is None or checkpoints.left_out(target):
        return None
    return processes.on_lead(checkpoints.latest)


def _check_can_continue(left_out: set[str]) -> None:
    if needed := sorted(left_out & {"step", "seed"}):
        raise UsageError(
            f"it leaves out {needed[0]!r}, which a run needs to continue from a checkpoint. Give it a name."
        )


def _checkpoints_at(place: str, save: Save) -> Checkpoints:
    try:
        return Checkpoints(
            save.directory or join(place, "checkpoints"),
            keep=save.keep,
            cast=as_casts(save.cast),
            names=save.names,
            host_nbytes=save.host_nbytes,
            memory=save.memory,
        )
    except UsageError as error:
        if save.directory is None:
            raise UsageError(f"{error}\n  Give another directory for the checkpoints of {place}.") from None
        raise
