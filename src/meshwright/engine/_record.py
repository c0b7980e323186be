"""The record of a run, which process 0 writes: its settings at the start, its outcome and page at the end."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from meshwright.checkpoints._internal import Checkpoints
from meshwright.engine._run_files import ended_before, noted_program, write_description, write_outcome
from meshwright.engine._settings import Settings
from meshwright.engine._training import Training
from meshwright.errors import DivergedError, Interrupted, MeshwrightError
from meshwright.processes import _internal as processes
from meshwright.report._internal import read_run, write_page

log = logging.getLogger("meshwright")

LARGEST_METRICS_NBYTES = 16 * 2**20
"""The largest metrics.jsonl for which a run writes its page. Reading and drawing it takes about three
seconds; somebody who stops a run may not wait longer for its process to end."""

_PAGE_SECONDS = 60.0
"""The least time between two pages of a run that is not over."""


class Record:
    """A context manager around a whole run that writes its settings, and at its end the outcome and the page.

    It is the outermost one, so that the outcome is written when everything else is closed. A run that fails
    before it begins, for instance because its settings do not fit, writes nothing: the files that are there
    belong to the attempt before.
    """

    def __init__(self, directory: Path | None, settings: Settings):
        self._directory, self._settings = directory, settings
        self._has_begun = False
        self._outcome: Mapping[str, Any] | None = None
        self._page_due = time.monotonic() + _PAGE_SECONDS

    def begin(self, checkpoints: Checkpoints | None, training: Training, step: int) -> str | None:
        """Write the settings, and remove the outcome of the attempt before. Later calls do nothing.

        Returns a remark, on process 0, if the program of the step has changed since the attempt before.
        """
        is_first, self._has_begun = not self._has_begun, True
        if not processes.is_lead() or self._directory is None or not is_first:
            return None
        if how := ended_before(self._directory):
            log.warning("the attempt before ended: %s", how)
        write_description(self._directory, self._settings, checkpoints, training, step)
        write_outcome(self._directory, None)
        return noted_program(self._directory, training, step)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Set the outcome of a training that ended without an error, as `Outcome.summary` returns it."""
        self._outcome = {"ended": "finished", **summary}

    def fail(self, error: BaseException) -> None:
        """Set the outcome of a training that ended with an error.

        There is none for an error that ends the process at once, such as `SystemExit`.
        """
        has_outcome = self._has_begun and isinstance(error, Exception)
        self._outcome = _ended_by(error) if has_outcome else None

    def refresh(self) -> None:
        """Write the page of a run that is not over, so rarely that this takes at most 1% of the time."""
        started = time.monotonic()
        if self._directory is None or not processes.is_lead() or started < self._page_due:
            return
        try:
            self._write_page(self._directory)
        except (OSError, MeshwrightError) as failure:
            log.warning("the page report.html could not be written: %s", failure)
        took = time.monotonic() - started
        self._page_due = started + max(_PAGE_SECONDS, 100 * took)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(error)
        if self._directory is not None and processes.is_lead() and self._outcome is not None:
            self._end(self._directory, self._outcome)

    def _end(self, directory: Path, outcome: Mapping[str, Any]) -> None:
        """Write the outcome and the page. An error is only logged: it must not hide how the run ended."""
        try:
            write_outcome(directory, outcome)
            self._write_page(directory)
        except Exception as failure:
            is_bug = not isinstance(failure, OSError | MeshwrightError)
            log.warning("outcome.json or report.html could not be written: %s", failure, exc_info=is_bug)

    def _write_page(self, directory: Path) -> None:
        metrics, location = directory / "metrics.jsonl", self._settings.place or str(directory)
        if metrics.exists() and metrics.stat().st_size > LARGEST_METRICS_NBYTES:
            log.warning(
                "report.html is not written, because that takes long: run `meshwright report %s`", location
            )
        else:
            write_page(read_run(directory, location))


def _ended_by(error: BaseException) -> dict[str, Any]:
    match error:
        case Interrupted():
            ended = "stopped"
        case DivergedError():
            ended = "diverged"
        case _:
            ended = "failed"
    message = str(error) if isinstance(error, MeshwrightError) else f"{type(error).__name__}: {error}"
    return {"ended": ended, "message": message}
