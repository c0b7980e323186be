"""The record of a run, which process 0 writes: its settings at the start, its outcome and page at the end."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from meshwright import process
from meshwright.checkpoint import Checkpoints
from meshwright.engine._run_files import write_description, write_outcome
from meshwright.engine._settings import Settings
from meshwright.engine._training import Training
from meshwright.errors import DivergedError, Interrupted, MeshwrightError
from meshwright.report import read_run, write_page

log = logging.getLogger("meshwright")

LARGEST_METRICS_NBYTES = 16 * 2**20
"""Read and drawn in some three seconds. Whoever stops a run may not wait longer for its process to end."""


_PAGE_SECONDS = 60.0  # between two pages of a run that goes on, at least


class Record:
    """Held open around all of a run, so that what it tells of the end is told when everything is closed.

    Of a run that ends before it began, as settings that do not fit make it, nothing is written: what lies
    there is of the run before.

    Args:
      directory: where the files of the run are made; None for a run that leaves none.
      settings: how the run goes.
    """

    def __init__(self, directory: Path | None, settings: Settings):
        self._directory, self._settings = directory, settings
        self._has_begun = False
        self._outcome: Mapping[str, Any] | None = None
        self._page_due = time.monotonic() + _PAGE_SECONDS

    def begin(self, checkpoints: Checkpoints | None, training: Training, step: int) -> None:
        """Write down what runs from a step on, and take back how it ended before; once."""
        if process.is_lead() and self._directory is not None and not self._has_begun:
            write_description(self._directory, self._settings, checkpoints, training, step)
            write_outcome(self._directory, None)
        self._has_begun = True

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Take what came out of a training that was not ended by an error."""
        self._outcome = {"ended": "finished", **summary}

    def fail(self, error: BaseException) -> None:
        """Take the error that ended a training. What ends the process at once is told by nobody."""
        is_told = self._has_begun and isinstance(error, Exception)
        self._outcome = _ended_by(error) if is_told else None

    def refresh(self) -> None:
        """Draw the page of a run that goes on, so rarely that it takes a hundredth of the time at most."""
        started = time.monotonic()
        if self._directory is None or not process.is_lead() or started < self._page_due:
            return
        try:
            self._write_page(self._directory)
        except (OSError, MeshwrightError) as failure:
            log.warning("the page could not be drawn: %s", failure)
        took = time.monotonic() - started
        self._page_due = started + max(_PAGE_SECONDS, 100 * took)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(error)
        if self._directory is not None and process.is_lead() and self._outcome is not None:
            self._end(self._directory, self._outcome)

    def _end(self, directory: Path, outcome: Mapping[str, Any]) -> None:
        """Write down how the run ended. It did so: nothing that goes wrong here may say otherwise."""
        try:
            write_outcome(directory, outcome)
            self._write_page(directory)
        except Exception as failure:
            is_bug = not isinstance(failure, OSError | MeshwrightError)
            log.warning("how the run ended could not be written down whole: %s", failure, exc_info=is_bug)

    def _write_page(self, directory: Path) -> None:
        metrics, place = directory / "metrics.jsonl", self._settings.place or str(directory)
        if metrics.exists() and metrics.stat().st_size > LARGEST_METRICS_NBYTES:
            log.warning("so many reports take long to draw: `meshwright report %s` does", place)
        else:
            write_page(read_run(directory, place))


def _ended_by(error: BaseException) -> dict[str, Any]:
    match error:
        case Interrupted():
            ended = "stopped"
        case DivergedError():
            ended = "diverged"
        case _:
            ended = "failed"
    said = str(error) if isinstance(error, MeshwrightError) else f"{type(error).__name__}: {error}"
    return {"ended": ended, "message": said}
