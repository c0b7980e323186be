"""A thread that writes the heartbeat of this process, and reports a process without progress.

The heartbeat is the phase, the step and the line of source; see `processes/_heartbeat.py`.
"""

import contextlib
import logging
import math
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType

import jax

import meshwright
import meshwright.processes
from meshwright.base._internal import print_line
from meshwright.errors import EXIT_HUNG
from meshwright.processes import _internal as processes
from meshwright.processes._internal import Entry, blamed, look, process_identity, verdict, write_entry
from meshwright.training._phase_clock import END, SAVE, PhaseClock

log = logging.getLogger("meshwright")

_BEAT_SECONDS = 1.0
_BEATS = 5
"""The least number of beats within the shortest time that is unusual."""
_PROCESSES_A_SECOND = 50
"""The number of processes that may write in a second, so as not to burden a shared file system."""
_LONGEST_BEAT_SECONDS = 10.0
_LOOK_SECONDS = 30.0
"""The longest time to read the others' heartbeats: some seconds, but a shared disk may not answer."""
_SAVING = ("checkpoint",)
"""The beginnings of the names of our own threads that are reported when the main thread waits for them."""
_OURS = f"{Path(meshwright.__file__ or '').parent}{os.sep}"
_JAX = f"{Path(jax.__file__).parent}{os.sep}"
_PYTHON = f"{sysconfig.get_path('stdlib')}{os.sep}"


@contextlib.contextmanager
def on_board(
    directory: Path,
    clock: PhaseClock,
    shortest_seconds: float,
    *,
    first_seconds: float = math.inf,
    kill: bool = False,
    readings: Callable[[], Mapping[str, float]] = dict,
) -> Iterator[None]:
    """Write the heartbeat of this process while the block runs. Call it on the thread that runs the steps.

    If the process makes no progress for longer than is usual, it prints a table of all processes.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        log.warning("%s cannot be made, so nobody can ask where the processes stand: %s", directory, failure)
    heart = _Heart(directory, clock, (shortest_seconds, first_seconds), kill, readings)
    thread = threading.Thread(target=heart.run, name="meshwright-board", daemon=True)
    thread.start()
    try:
        yield
    finally:
        heart.over.set()
        thread.join()
        heart.leave()


class _Heart:
    def __init__(
        self,
        directory: Path,
        clock: PhaseClock,
        seconds: tuple[float, float],
        kill: bool,
        readings: Callable[[], Mapping[str, float]],
    ):
        self.over = threading.Event()
        self.number, self._num_processes = jax.process_index(), jax.process_count()
        self._directory, self._clock, self._readings = directory, clock, readings
        self._limits, self._kill = seconds, kill
        self._blamed: list[int] = []
        self._main = threading.get_ident()
        beat = self._num_processes / _PROCESSES_A_SECOND
        self._beat_seconds = min(_LONGEST_BEAT_SECONDS, max(min(_BEAT_SECONDS, min(seconds) / _BEATS), beat))

    def run(self) -> None:
        """Write the entry at each beat, and look at the others' entries when this process stands still.

        The time without progress is counted in beats: a process that was suspended did not lose any.
        """
        turns, still, beat, num_reports = -1, 0.0, 0, 0
        report = threading.Thread()
        while True:
            beat_start = time.monotonic()
            if turns != self._clock.turns:
                turns, still, num_reports = self._clock.turns, 0.0, 0
            limit = self._clock.limit_seconds(*self._limits)
            self._write(beat, still, limit)
            if still > (num_reports + 1) * limit:
                num_reports += 1
                if num_reports == 1:
                    self._blamed = []
                    report = threading.Thread(target=self._report, args=(turns, limit), daemon=True)
                    report.start()
                elif self._kill and (not report.is_alive() or still > max(2 * limit, _LOOK_SECONDS) + limit):
                    self._end()
            if self.over.wait(self._beat_seconds):
                return
            still += min(time.monotonic() - beat_start, 2 * self._beat_seconds)
            beat += 1

    def leave(self) -> None:
        """Remove the entry, and the folder with the last entry: a process that leaves is not dead."""
        with contextlib.suppress(OSError):
            (self._directory / f"process-{self.number:05}.json").unlink(missing_ok=True)
            self._directory.rmdir()

    def _end(self) -> None:
        self.leave()
        stands = "it stands still, and this process waits for it"
        others = [] if self.number in self._blamed else self._blamed[:1]
        processes.announce_exit(EXIT_HUNG, *(f"error: process {other}: {stands}" for other in others))
        os._exit(EXIT_HUNG)

    def _write(self, beat: int, still: float, limit: float) -> None:
        host, pid, born, namespace = process_identity()
        where, others, waits = self._stands() if still else ("", [], False)
        entry = Entry(
            process=self.number,
            num_processes=self._num_processes,
            host=host,
            pid=pid,
            born=born,
            namespace=namespace,
            phase=self._clock.phase,
            step=self._clock.step,
            turns=self._clock.turns,
            beat=beat,
            still_seconds=round(still, 1),
            limit_seconds=limit if math.isfinite(limit) else None,
            beat_seconds=self._beat_seconds,
            is_waiting=waits,
            where=where,
            others=others,
            readings=self._readings(),
        )
        # A full disk does not end a run.
        with contextlib.suppress(OSError):
            write_entry(self._directory, entry)

    def _stands(self) -> tuple[str, list[str], bool]:
        """Return the line of the main thread, those of other threads, and whether the main thread waits.

        Call it only when this process stands still: in Python 3.11 the frames of threads that run on can be
        freed while they are read.
        """
        frames = sys._current_frames()
        # The frame of this function would keep all frames, with the user's objects, until a garbage
        # collection.
        del frames[threading.get_ident()]
        main = frames.pop(self._main, None)
        saving = _SAVING if self._clock.phase in (SAVE, END) else ()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        lines = {
            _line(frame, only_users=not names.get(ident, "").startswith(saving))
            for ident, frame in frames.items()
        }
        return _line(main) or "", sorted(filter(None, lines)), is_waiting(main)

    def _report(self, turns: int, limit: float) -> None:
        statuses = look(self._directory)
        if self._clock.turns != turns or self.over.is_set():
            return
        threat = f" In {limit:.0f} s more it is ended with exit code {EXIT_HUNG}." if self._kill else ""
        has_baseline = self._clock.has_baseline()
        usual = "at least five times as long as ever before" if has_baseline else "for the first time"
        why = f"longer than {limit:.0f} s, {usual} in the phase {self._clock.phase}."
        head = f"process {self.number} stands still for {why}"
        message = f"{head}{threat}\n{verdict(statuses)}"
        self._blamed = blamed(statuses)
        with contextlib.suppress(ValueError, OSError):
            print_line(f"meshwright: {message}", sys.stderr)
        if log.hasHandlers():
            log.error(message)


def _line(frame: FrameType | None, *, only_users: bool = False) -> str | None:
    """Return the innermost line of a stack that is in neither Python's libraries nor JAX."""
    while isinstance(frame, FrameType) and (
        _is_pythons(frame.f_code.co_filename) or frame.f_code.co_filename.startswith(_JAX)
    ):
        frame = frame.f_back
    if not isinstance(frame, FrameType) or (only_users and frame.f_code.co_filename.startswith(_OURS)):
        return None
    path = frame.f_code.co_filename
    short = f"meshwright/{path.removeprefix(_OURS)}" if path.startswith(_OURS) else path
    return f"{short}:{frame.f_lineno} in {frame.f_code.co_name}"


_PROCESSES = Path(meshwright.processes.__file__ or "").parent
_READERS = {"_heartbeat.py", "_sensors.py", "_slow.py", "_verdict.py"}
"""Files of `processes` that look at other processes, and do not wait for them."""


def is_waiting(frame: FrameType | None) -> bool:
    """Return whether a thread is in JAX or in `meshwright.processes`, and not in user code."""
    while frame and _is_pythons(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return False
    file = frame.f_code.co_filename
    return file.startswith(_JAX) or (Path(file).parent == _PROCESSES and Path(file).name not in _READERS)


def _is_pythons(path: str) -> bool:
    return path.startswith(("<frozen", _PYTHON)) and not path.startswith(f"{_PYTHON}site-packages")
