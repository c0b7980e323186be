"""The ledger of a run that goes on: process 0 adds up where the seconds go, and writes `ledger.json`.

A thread writes the file every few seconds, so that the ledger of a killed run lacks only these. It waits for
the file system; the training never does.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Self

from meshwright.errors import DivergedError, Interrupted
from meshwright.observe._internal import Values, Writer
from meshwright.processes import _internal as processes
from meshwright.report._internal import LEDGER, Ledger, read_ledger, saving_advice
from meshwright.training._internal import PhaseClock

log = logging.getLogger("meshwright")

_WRITE_SECONDS = 5.0
"""The time between two writes of the file."""
_SHORTEST_SECONDS = 0.5
"""The shortest time between two writes."""
_FAR = 2.0
"""The factor by which the time between saves may differ from the best without a remark."""
_PART_OF_PHASE = {"first_batch": "input", "restore": "start", "end": "other"}
"""The part of the ledger for each phase that has another name."""


class LedgerKeeper:
    """A context manager around a run that keeps its ledger.

    Without a directory, or on another process than 0, it does nothing. A run that does not begin to train,
    because it is finished or its settings do not fit, writes nothing, unless it takes longer than a few
    seconds to find out.
    """

    def __init__(self, directory: Path | None, clock: PhaseClock):
        self._path = directory / LEDGER if directory is not None and processes.is_lead() else None
        self._clock, self._counted = clock, dict[str, float]()
        self._ledger = Ledger()
        self._lock = threading.Lock()
        self._wake, self._over = threading.Event(), threading.Event()
        self._has_begun = self._is_failing = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._path is not None:
            ago = time.monotonic() - self._clock.started
            self._ledger = _ledger_before(self._path).begun(time.time() - ago)
            self._thread = threading.Thread(target=self._keep, name="meshwright-ledger", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._path is None or self._thread is None:
            return
        self._over.set()
        self._wake.set()
        self._thread.join()
        self._change(lambda ledger: replace(ledger, ended=_how(error)))
        if self._has_begun:
            self._write(self._path)

    def follow(self, clock: PhaseClock) -> None:
        """Count by the clock of a further training in the same directory. Until its start, the one before
        counts.
        """
        with self._lock:
            self._advance(clock.started)
            self._clock, self._counted = clock, {}

    def begin(self, step: int | None) -> Ledger:
        """Note that the training begins, and return the ledger."""
        self._change(lambda ledger: ledger if step is None else ledger.continued(step))
        self._has_begun = True
        self._wake.set()
        return self._ledger

    def save(self, step: int) -> None:
        """Note that the state after `step` is saved."""
        self._change(lambda ledger: ledger.saved(step))
        self._wake.set()

    def note(self) -> None:
        """Note that the training got on, as at a report: the file is written soon."""
        self._wake.set()

    def adding(self, write: Writer) -> Writer:
        """Return a writer that adds the seconds of the ledger so far, as `ledger/step` and so on."""

        def write_with_ledger(step: int, values: Values, /) -> None:
            self._change(lambda ledger: ledger)
            write(step, {**values, **{f"ledger/{part}": x for part, x in self._ledger.seconds.items()}})

        return write_with_ledger

    def _change(self, change: Callable[[Ledger], Ledger]) -> None:
        if self._path is not None:
            with self._lock:
                self._advance(time.monotonic())
                self._ledger = change(self._ledger)

    def _advance(self, current_time: float) -> None:
        """Add the seconds of each phase since the last call."""
        seconds: dict[str, float] = {}
        for phase, spent in self._clock.seconds(current_time).items():
            part = _PART_OF_PHASE.get(phase, phase)
            seconds[part] = seconds.get(part, 0.0) + spent
        new = {part: spent - self._counted.get(part, 0.0) for part, spent in seconds.items()}
        self._counted = seconds
        self._ledger = self._ledger.added(new, self._ledger.until + sum(new.values()))

    def _keep(self) -> None:
        """Write the file again and again, until the run is over."""
        while not self._over.is_set():
            self._wake.wait(_WRITE_SECONDS)
            self._wake.clear()
            if self._path is not None and not self._over.is_set():
                self._change(lambda ledger: ledger)
                self._has_begun = True
                self._write(self._path)
                self._over.wait(_SHORTEST_SECONDS)

    def _write(self, path: Path) -> None:
        """Write the file. A reader, or the next attempt after a kill, finds the old content or the new
        one.
        """
        draft = path.with_name(f"{path.name}.tmp")
        try:
            draft.unlink(missing_ok=True)  # may be a link, which must not be followed
            with draft.open("x", encoding="utf-8") as file:
                file.write(json.dumps(self._ledger.document()) + "\n")
            draft.replace(path)
        except OSError as failure:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            if not self._is_failing:
                log.warning("%s could not be written: %s", path.name, failure)
            self._is_failing = True


def saving_remark(ledger: Ledger) -> str | None:
    """Return how often to save, if the run has failed before and saves far too often or too rarely; else
    None.
    """
    best, seconds = ledger.best_save_seconds, ledger.seconds_between_saves
    if best is None or seconds is None or 1 / _FAR < seconds / best < _FAR:
        return None
    return f"  saves: {saving_advice(ledger)}"


def _how(error: BaseException | None) -> str:
    """Return how an attempt ended, as `Ledger.ended`."""
    match error:
        case None:
            return "finished"
        case DivergedError():
            return "diverged"
        case Interrupted():
            return "stopped"
        case Exception():
            return "failed"
        case _:  # such as KeyboardInterrupt: somebody ended it
            return "stopped"


def _ledger_before(path: Path) -> Ledger:
    try:
        return read_ledger(path) if path.exists() else Ledger()
    except (OSError, ValueError) as failure:
        log.warning("%s cannot be read, and begins anew: %s", path.name, failure)
        return Ledger()
