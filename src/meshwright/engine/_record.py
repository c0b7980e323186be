"""What process 0 writes down of a run: at its start what it is, at its end how it ended, and its page."""

import logging
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from meshwright import process
from meshwright.checkpoint import Checkpoints
from meshwright.engine._settings import Settings
from meshwright.engine._training import Training
from meshwright.engine._written import write_description, write_outcome
from meshwright.errors import DivergedError, Interrupted, MeshwrightError
from meshwright.report import read_run, write_page

log = logging.getLogger("meshwright")

LARGEST_METRICS_NBYTES = 16 * 2**20
"""Read and drawn in some three seconds. Whoever stops a run may not wait longer for its process to end."""


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
        self.summary: Mapping[str, Any] = {}
        """To be set to what came out of a run that was not ended by an error."""

    def begin(self, checkpoints: Checkpoints | None, training: Training, step: int) -> None:
        """Write down what runs from a step on, and take back how it ended before."""
        self._has_begun = True
        if process.is_lead() and self._directory is not None:
            write_description(self._directory, self._settings, checkpoints, training, step)
            write_outcome(self._directory, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        is_known = bool(self._has_begun or self.summary)
        if self._directory is None or not process.is_lead() or not is_known:
            return
        if error is None or isinstance(error, Exception):
            self._end(self._directory, error)

    def _end(self, directory: Path, error: Exception | None) -> None:
        """Write down how the run ended. It did so: nothing that goes wrong here may say otherwise."""
        try:
            outcome = {"ended": "finished", **self.summary} if error is None else _ended_by(error)
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


def _ended_by(error: Exception) -> dict[str, Any]:
    match error:
        case Interrupted():
            ended = "stopped"
        case DivergedError():
            ended = "diverged"
        case _:
            ended = "failed"
    said = str(error) if isinstance(error, MeshwrightError) else f"{type(error).__name__}: {error}"
    return {"ended": ended, "message": said}
