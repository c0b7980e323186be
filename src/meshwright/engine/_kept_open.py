"""A run directory that stays open over several trainings, as in rounds of reinforcement learning.

A training that opens its own directory writes a description, begins a file of events, and writes a page of
all reports so far. In thousands of rounds this makes thousands of files and takes most of the time.
"""

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from meshwright.engine._directory import log_file, open_directory
from meshwright.engine._errors import errors_naming
from meshwright.engine._ledger import LedgerKeeper
from meshwright.engine._record import Record
from meshwright.engine._settings import Settings
from meshwright.observe._internal import Writer
from meshwright.training._internal import PhaseClock

log = logging.getLogger("meshwright")


class KeptOpen:
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

    def reports(
        self, open_files: Callable[[contextlib.ExitStack], Writer], after: int
    ) -> tuple[Writer, bool]:
        """Return the writer of reports, and whether its files were opened by this call.

        The files are opened again if a training does not continue from the step at which the last one ended.
        """
        if self._write is not None and after == self.step:
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
