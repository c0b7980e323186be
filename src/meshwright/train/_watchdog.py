"""The loop's `on_step`: notices that a run does not go on, says where every thread stands, and may end it.

It lives in a thread of its own, which needs Python's lock and nothing else: JAX gives the lock up while it
waits for devices and other processes. For a call that keeps the lock, `faulthandler`, which does without
it, stands behind.
"""

import faulthandler
import logging
import math
import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import jax

from meshwright import process
from meshwright.errors import EXIT_HUNG, UsageError
from meshwright.when import Tick

log = logging.getLogger("meshwright")

Timeouts = float | Mapping[str, float]
"""Seconds for a step; or by phase."""

STEP, START = "step", "start"
PHASES = (STEP, START, "first_batch", "restore", "compile", "evaluation", "save", "end")
"""The phases of an experiment's run: `start` until its first step is done, and `end` after its last, but for
the others in between."""
_OTHERS_TAKE = 10
"""Times of a step's timeout that other phases may take, where it is not said otherwise."""
_WAITS, _WORKS = "waits", "works"
"""The messages between the watchdogs of processes."""
_LOOKS = 4
"""So often within the shortest timeout."""
_WAITING = tuple(f"{Path(package.__file__).parent}{os.sep}" for package in (jax, process))
_PYTHON = f"{sysconfig.get_path('stdlib')}{os.sep}"
_OTHERS = f"{_PYTHON}site-packages"


@contextmanager
def watchdog(timeout_seconds: Timeouts, *, kill: bool = False) -> Generator["RunningWatchdog", None, None]:
    """Open an `on_step` that reports when no step has finished for `timeout_seconds`, and again.

        with mw.train.watchdog(600, kill=True) as watch:
            mw.fit(..., on_step=watch)

    A report, on stderr and in the log, has the process, the phase, the last step and the stacks of all
    threads. Time runs from entering the context. Until the first step is done, which compiles, and in
    `with watch.phase("evaluation"):` it may take ten times as long. Nothing is written while all is well, and
    the thread ends with the context, whatever ends that.

    Args:
      timeout_seconds: of a step; or by the names of phases, of which "step" must be one, and "start" is what
        comes before the first step is done.
      kill: at the second timeout in a row end the process at once, with exit code 5, as `os._exit` does: no
        handlers, nothing flushed, nobody waited for, also where the main thread hangs in C++. (JAX holds
        SIGTERM back, so a hung run would not die of that.) Of several processes, one that only waits for its
        devices, and so perhaps for another process, asks then whether another is at work, and goes on
        waiting if so; else it ends at the third timeout. So the one that hangs ends first, and then the
        others by a `PeersError`. Where a call hangs that keeps Python's lock, the process is ended with exit
        code 1 after four timeouts. A process that was suspended for so long may then be ended too.

    Raises:
      UsageError: a time is not positive, or there is none for a step.
    """
    seconds = timeouts(timeout_seconds)
    watching = RunningWatchdog(seconds, kill)
    thread = threading.Thread(target=watching.watch, name="meshwright-watchdog", daemon=True)
    watching.renew_backstop()
    thread.start()
    try:
        with process.receiving(watching.hear):
            yield watching
    finally:
        watching.over.set()
        thread.join()
        faulthandler.cancel_dump_traceback_later()


def unwatched() -> "RunningWatchdog":
    """Return an `on_step` that measures nothing."""
    watching = RunningWatchdog({STEP: math.inf}, kill=False)
    watching.over.set()
    return watching


def timeouts(seconds: Timeouts) -> Mapping[str, float]:
    """Return the timeouts by phase.

    Raises:
      UsageError: a time is not positive, or there is none for a step.
    """
    by_phase = seconds if isinstance(seconds, Mapping) else {STEP: seconds}
    if STEP not in by_phase or not all(each > 0 for each in by_phase.values()):
        raise UsageError(
            f"a watchdog's timeout is {seconds}: give a number of seconds above 0, for a step at least."
        )
    return by_phase


class RunningWatchdog:
    """Made by `watchdog`; called with the tick of each step that has finished."""

    def __init__(self, seconds: Mapping[str, float], kill: bool):
        self.over = threading.Event()
        self._seconds, self._kill = seconds, kill
        self._process, self._num_processes = jax.process_index(), jax.process_count()
        self._thread = threading.get_ident()
        self._phase = START
        self._step: int | None = None
        self._backstop_seconds = 0.0
        """A fourth of what the backstop was last put off by."""
        self._turns = 0
        """Grows whenever a step is done, a phase begins or ends, or it is known that another is at work."""

    def __call__(self, tick: Tick) -> None:
        """A step has finished."""
        self._step = tick.step
        self._turns += 1
        if self._phase != STEP:
            self.enter(STEP)

    @contextmanager
    def phase(self, name: str) -> Generator[None, None, None]:
        """Measure the time of this block as that of the phase `name`. For the thread that runs the steps."""
        before = self._phase
        self.enter(name)
        try:
            yield
        finally:
            self.enter(before)

    def enter(self, phase: str) -> None:
        """Measure the time from now on as that of `phase`, until a step is done."""
        self._phase = phase
        self._turns += 1
        # Each renewal starts a thread: four times a step, that cost more than all else that a run adds.
        # A backstop that is further off than this phase needs is put right by the next look.
        if self._timeout() > self._backstop_seconds:
            self.renew_backstop()

    def hear(self, word: str) -> None:
        """Take what another process says: that it waits, or that it is at work."""
        if word == _WAITS and not self._is_waiting():
            process.send_to_all(_WORKS)
        if word == _WORKS and self._is_waiting():
            self._turns += 1

    def watch(self) -> None:
        """Until it is over: count timeouts in a row. They begin anew with each step and each phase.

        Counted look by look, so that a process which was suspended gets its time to go on.
        """
        pause = min(self._seconds.values()) / _LOOKS
        turns, looks, num_timeouts = self._turns, 0, 0
        while not self.over.wait(pause):
            self.renew_backstop()
            if turns != self._turns:
                turns, looks, num_timeouts = self._turns, 0, 0
            looks += 1
            if looks * pause >= self._timeout():
                looks, num_timeouts = 0, num_timeouts + 1
                self._time_is_up(num_timeouts)

    def _timeout(self) -> float:
        return self._seconds.get(self._phase, _OTHERS_TAKE * self._seconds[STEP])

    def _time_is_up(self, num_timeouts: int) -> None:
        seconds, is_waiting = self._timeout(), self._is_waiting()
        left = (3 if is_waiting else 2) - num_timeouts
        if self._kill and left <= 0:
            process.announce_exit(EXIT_HUNG)
            os._exit(EXIT_HUNG)
        if is_waiting:
            process.send_to_all(_WAITS)
        what = f"no step has finished for {num_timeouts * seconds:g} s"
        if self._phase != STEP:
            what = f"{self._phase} has taken {num_timeouts * seconds:g} s and is not over"
        last = "there was no step yet" if self._step is None else f"the last step was {self._step}"
        threat = (
            f" In {left * seconds:g} s more it is ended with exit code {EXIT_HUNG}." if self._kill else ""
        )
        if is_waiting:
            threat = f" It waits for its devices, and so perhaps for another process.{threat}"
        # Reporting may block: on a full pipe, on source files that are far, on a lock that the hung thread
        # holds. This thread must not.
        said = f"process {self._process}: {what}; {last}.{threat}"
        threading.Thread(target=_report, args=(said,), daemon=True).start()

    def _is_waiting(self) -> bool:
        """Return whether the thread that runs the steps may wait for another process, which hangs."""
        return self._num_processes > 1 and _waits(sys._current_frames().get(self._thread))

    def renew_backstop(self) -> None:
        """Put off what happens when this thread cannot run, because a hung call keeps Python's lock."""
        if not self.over.is_set():
            self._backstop_seconds = self._timeout()
            faulthandler.dump_traceback_later(4 * self._backstop_seconds, file=2, exit=self._kill)


def _report(said: str) -> None:
    said = f"{said}\n{_stacks()}"
    with suppress(ValueError, OSError):  # stderr may be closed by then
        print(f"meshwright: {said}", file=sys.stderr, flush=True)
    if log.hasHandlers():  # without any, logging would print it on stderr once more
        log.error(said)


def _waits(frame: FrameType | None) -> bool:
    """Return whether a thread stands in JAX, or in our calls to other processes, and not in user code."""
    while frame and _is_pythons(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_WAITING)


def _is_pythons(path: str) -> bool:
    return path.startswith(("<frozen", _PYTHON)) and not path.startswith(_OTHERS)


def _stacks() -> str:
    """Return the stacks of all threads, by name, without the one that asks."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = {
        ident: frame for ident, frame in sys._current_frames().items() if ident != threading.get_ident()
    }
    return "\n".join(
        f"thread {names.get(ident, ident)}, most recent call last:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames.items()
    )
