"""A run directory that stays open from training to training, as in rounds.

Each training that opens one by itself describes it, begins a file of events and draws a page of all reports
so far. In thousands of rounds these are thousands of files, and most of the time that a training takes.
"""

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from meshwright.engine._directory import log_file, open_directory
from meshwright.engine._errors import errors_naming
from meshwright.engine._record import Record
from meshwright.engine._settings import Settings
from meshwright.metrics import Writer

log = logging.getLogger("meshwright")


class KeptOpen:
    """The directory of several trainings: the first one opens it, and `close` closes it.

    It has one description and one file of events. The page is drawn when it is closed, and by `refresh`.
    """

    def __init__(self) -> None:
        self._opened, self._files = contextlib.ExitStack(), contextlib.ExitStack()
        self._place: tuple[Path, Record] | None = None
        self._write: Writer | None = None
        self.step = -1
        """The step at which the newest training ended."""

    def open(self, settings: Settings) -> tuple[Path, Record]:
        """Return the directory and its record, opened by the settings of the first training. Collective.

        Raises:
          UsageError: another run has it, or it cannot be used.
        """
        if self._place is None:
            with contextlib.ExitStack() as opened, errors_naming("workdir"):
                warn = settings.say or log.warning
                directory, _ = opened.enter_context(open_directory(settings.place or "", warn, shared=False))
                record = opened.enter_context(Record(directory, settings))
                opened.enter_context(log_file(directory))
                self._opened, self._place = opened.pop_all(), (directory, record)
        return self._place

    def reports(
        self, open_files: Callable[[contextlib.ExitStack], Writer], after: int
    ) -> tuple[Writer, bool]:
        """Return the writer of reports, and whether its files were opened just now.

        They are opened again where a training goes on from another step than the one before it ended at.
        """
        if self._write is not None and after == self.step:
            return self._write, False
        self._files.close()
        self._write = open_files(self._files)
        return self._write, True

    def refresh(self) -> None:
        """Draw the page anew, if that was not done lately."""
        if self._place is not None:
            self._place[1].refresh()

    def close(self) -> None:
        """Write down how the newest training ended, draw the page, and give the directory back."""
        self._place = self._write = None
        self._files.close()
        self._opened.close()
