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
from meshwright.engine._ledger import LedgerKeeper
from meshwright.engine._machines import Machines
from meshwright.engine._record import Record
from meshwright.engine._settings import Save, Settings, as_casts
from meshwright.engine._training import Training
from meshwright.errors import UsageError, printable
from meshwright.observe._internal import Console, Writer, sync_jsonl
from meshwright.processes import _internal as processes
from meshwright.processes._internal import board_directory
from meshwright.training._internal import PhaseClock, RunningWatchdog, TrainState, check_finite, on_board

log = logging.getLogger("meshwright")


class OpenRunDirectory:
    """The run directory of several trainings: the first one opens it, and `close` closes it.

    It has one description and one file of events. `refresh` and `close` write the page.
    """

    def __init__(self) -> None:
        self._stack, self._files = contextlib.ExitStack(), contextlib.ExitStack()
        self._opened: tuple[Path, Record, LedgerKeeper] | None = None
        self._write: Writer | None = None
        self.step = -1
        """The step at which the newest training ended."""

    def open(self, settings: Settings, clock: PhaseClock) -> tuple[Path, Record, LedgerKeeper]:
        """Return the directory, its record and its ledger. The first call opens them. Collective."""
        if self._opened is None:
            with contextlib.ExitStack() as stack, errors_naming("workdir"):
                warn = settings.say or log.warning
                directory, _ = stack.enter_context(open_directory(settings.place or "", warn, shared=False))
                record = stack.enter_context(Record(directory, settings))
                ledger = stack.enter_context(LedgerKeeper(directory, clock))
                stack.enter_context(log_file(directory))
                self._stack, self._opened = stack.pop_all(), (directory, record, ledger)
        else:
            self._opened[2].follow(clock)
        return self._opened

    def reports(self, open_files: Callable[[contextlib.ExitStack], Writer], step: int) -> tuple[Writer, bool]:
        """Return the writer of reports, and whether its files were opened by this call.

        The files are opened again if a training does not continue from the step at which the last one ended.
        """
        if self._write is not None and step == self.step:
            return self._write, False
        self._files.close()
        self._write = open_files(self._files)
        return self._write, True

    def refresh(self) -> None:
        """Note that a round is saved, and write the page again, but not too often; see `Record.refresh`."""
        if self._opened is not None:
            _, record, ledger = self._opened
            ledger.save(self.step)
            record.refresh()

    def close(self) -> None:
        """Write the outcome of the newest training and the page, and unlock the directory."""
        self._opened = self._write = None
        self._files.close()
        self._stack.close()


log = logging.getLogger("meshwright")


def line_printer(
    console: Console, level: int = logging.INFO, *, is_shown: bool = True
) -> Callable[[str], None]:
    """Return a function that shows a line to the user."""

    def say(text: str) -> None:
        shows = is_shown and processes.is_lead()
        if log.hasHandlers() or not shows:  # without a handler, Python would print the line a second time
            log.log(level, text.strip())
        if shows:
            console.say(printable(text))

    return say


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
    kept_open: OpenRunDirectory | None = None
    """The run directory if it stays open for further trainings."""
    machines: Machines = field(default_factory=Machines)
    """Reads the machines and devices of the run."""


@contextlib.contextmanager
def open_run(
    settings: Settings,
    training: Training,
    watch: RunningWatchdog,
    started: float,
    kept_open: OpenRunDirectory | None = None,
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
        shared_fields = (say, detail, started, None, machines)
        yield OpenRun(directory, console, checkpoints, signals, record, watch, ledger, *shared_fields)


def _on_board(
    settings: Settings,
    location: str,
    watch: RunningWatchdog,
    warn: Callable[[str], None],
    stack: contextlib.ExitStack,
) -> Machines:
    """Read the machine and, if there is a watchdog, tell on the board where this process stands."""
    chosen, seconds = settings.watchdog, settings.logging.machine_seconds
    if chosen is None or chosen.learned == "ignore":
        return stack.enter_context(Machines(seconds, watch.clock))
    directory = board_directory(location)
    processes.report_board(directory)
    machines = stack.enter_context(Machines(seconds, watch.clock, directory, warn))
    limits = {"shortest_seconds": chosen.shortest_seconds, "first_seconds": chosen.first_seconds}
    ends = chosen.learned == "end"
    stack.enter_context(on_board(directory, watch.clock, **limits, kill=ends, readings=machines.readings))
    return machines


@contextlib.contextmanager
def _opened_before(
    kept_open: OpenRunDirectory, settings: Settings, watch: RunningWatchdog
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


def _checkpoints_at(location: str, save: Save) -> Checkpoints:
    try:
        return Checkpoints(
            save.directory or join(location, "checkpoints"),
            keep=save.keep,
            cast=as_casts(save.cast),
            names=save.names,
            host_nbytes=save.host_nbytes,
            memory=save.memory,
        )
    except UsageError as error:
        if save.directory is None:
            raise UsageError(
                f"{error}\n  Give another directory for the checkpoints of {location}."
            ) from None
        raise
