"""Readings of the machines and devices of a run, taken by a thread beside the loop and added to its reports.

Each process reads its own machine and tells the board. Process 0 puts all of them together, and says once if
a process is slower than the others.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from meshwright.observe._internal import Values, Writer
from meshwright.processes import _internal as processes
from meshwright.processes._internal import (
    INPUT_SECONDS,
    PREFIX,
    REPORT_SECONDS,
    STEP_SECONDS,
    SlowPeers,
    machine_reader,
    read_entries,
    worst,
)
from meshwright.training._internal import PhaseClock

log = logging.getLogger("meshwright")

_FEWEST_STEPS = 5
"""The number of steps over which times are averaged at least."""
_REST = 1000
"""The least time between two looks at all processes, as a multiple of the time of a look: of thousands of
processes it takes a second.
"""
_OF_A_STEP = ("step", "input", "report", "stall")


class Machines:
    """A context manager around a run whose thread reads the machine from time to time."""

    def __init__(
        self,
        seconds: float | None = None,
        clock: PhaseClock | None = None,
        board: Path | None = None,
        warn: Callable[[str], None] = log.warning,
    ):
        self._seconds, self._clock, self._board, self._warn = seconds, clock or PhaseClock(), board, warn
        self._newest: Mapping[str, float] = {}
        self._unreported: Mapping[str, float] = {}
        self._steps: Mapping[str, float] = {}
        self._before: tuple[int, dict[str, float]] | None = None
        self._peers = SlowPeers()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._seconds is not None:
            self._thread = threading.Thread(target=self._keep, name="meshwright-machines", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def readings(self) -> Mapping[str, float]:
        """Return the newest readings of this process."""
        return self._newest

    def adding(self, write: Writer) -> Writer:
        """Return a writer that adds the readings since the last report to the reports of training."""

        def write_with_readings(step: int, values: Values, /) -> None:
            if "steps_per_second" in values:
                readings, self._unreported = self._unreported, {}
                values = {**values, **readings}
            write(step, values)

        return write_with_readings

    def _keep(self) -> None:
        try:
            read = machine_reader()
            read()
            due = 0.0
            while not self._over.wait(self._seconds):
                self._newest = {**read(), **self._of_steps()}
                if processes.is_lead() and time.monotonic() >= due:
                    started = time.thread_time()
                    self._gather()
                    due = time.monotonic() + _REST * (time.thread_time() - started)
        except Exception:
            log.warning("the machine is no longer read", exc_info=True)  # and the run goes on

    def _gather(self) -> None:
        entries = read_entries(self._board).values() if self._board is not None else ()
        readings = {entry.process: entry.readings for entry in entries if entry.readings}
        own = {name: value for name, value in self._newest.items() if name.startswith(PREFIX)}
        others = (
            {name: x for name, x in values.items() if name.startswith(PREFIX)} for values in readings.values()
        )
        self._unreported = worst([own, *others])
        hosts = {entry.process: entry.host for entry in entries}
        for slow in self._peers.add(readings):
            self._warn(f"  ! {slow}, on {hosts[slow.process]}")

    def _of_steps(self) -> Mapping[str, float]:
        """Return the newest mean seconds of some steps; nothing before there were some."""
        step, seconds = self._clock.step, self._clock.seconds()
        if step is None:
            return self._steps
        if self._before is None or step < self._before[0]:
            self._before = step, seconds
            return self._steps
        num_steps, previous = step - self._before[0], self._before[1]
        if num_steps < _FEWEST_STEPS:
            return self._steps
        self._before = step, seconds
        took = {name: (seconds.get(name, 0.0) - previous.get(name, 0.0)) / num_steps for name in _OF_A_STEP}
        whole = sum(took.values())
        self._steps = {INPUT_SECONDS: took["input"], REPORT_SECONDS: took["report"], STEP_SECONDS: whole}
        return self._steps
