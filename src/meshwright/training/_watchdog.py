"""A watchdog for the loop's `on_step`: it reports a run that hangs, with all stacks, and may end it.

The watchdog runs in its own thread, which needs only Python's global lock (the GIL). JAX releases the GIL
while it waits for devices and other processes. `faulthandler`, which does not need the GIL, is the backstop
for a call that keeps the GIL.
"""

import faulthandler
import logging
import math
import os
import sys
import threading
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress

import jax

from meshwright.base._internal import print_line
from meshwright.errors import EXIT_HUNG, UsageError
from meshwright.processes import _internal as processes
from meshwright.processes._internal import Tick
from meshwright.training._heartbeat import is_waiting
from meshwright.training._phase_clock import INPUT, REPORT, STEP, PhaseClock

log = logging.getLogger("meshwright")

Timeouts = float | Mapping[str, float]
"""The timeout of a step in seconds, or the timeouts of several phases by name."""

_OTHERS_TAKE = 10
"""The default timeout of the other phases, as a multiple of the timeout of a step."""
_PART_OF_A_STEP = (INPUT, REPORT)
"""The phases that have the timeout of a step by default."""
_WAITS, _WORKS = "waits", "works"
"""The messages that the watchdogs of the processes send to each other."""
_CHECKS = 4
"""The number of checks within the shortest timeout."""


@contextmanager
def watchdog(
    timeout_seconds: Timeouts, *, kill: bool = False, clock: PhaseClock | None = None
) -> Generator["RunningWatchdog", None, None]:
    """Return a context manager of an `on_step` that reports when no step finishes for `timeout_seconds`.

    A report goes to stderr and to the log, and is repeated after each further timeout. It contains the
    process, the phase, the last step and the stacks of all threads. The time starts when the context is
    entered. Before the end of the first step, which includes compiling, and in the block
    `with watch.phase("evaluation"):`, the timeout is ten times as long. Nothing is written while steps
    finish in time. The thread ends with the context.

    Args:
      timeout_seconds: The timeout of a step, or a dictionary of timeouts by phase. The dictionary must have
        the phase "step". The phase "start" lasts until the first step is done.
      kill: If True, the second timeout in a row ends the process at once with exit code 5. The process ends
        by `os._exit`, which works even if the main thread hangs in C++: exit handlers do not run, nothing is
        flushed and no other process is waited for. (JAX handles SIGTERM, so SIGTERM does not end a hung run.)
        With several processes, a process that only waits for its devices may wait for another process. At a
        timeout it asks the others whether one of them is working. If so, it continues to wait; otherwise it
        ends at the third timeout. The process that hangs therefore ends first, and the others end by a
        `PeersError`. If a hung call keeps the GIL, the process ends with exit code 1 after four timeouts. The
        same may happen to a process that was suspended for that time.
      clock: The clock that counts the seconds of each phase; None makes a new one.

    Raises:
      UsageError: A timeout is not positive, or there is no timeout for "step".

    Example:
      >>> with mw.training.watchdog(600) as watch:  # mw.fit(..., on_step=watch)
      ...     watch(mw.engine.Tick(1))
    """
    seconds = timeouts(timeout_seconds)
    watching = RunningWatchdog(seconds, kill, clock or PhaseClock())
    thread = threading.Thread(target=watching.watch, name="meshwright-watchdog", daemon=True)
    watching.renew_backstop()
    thread.start()
    try:
        with processes.receiving(watching.hear):
            yield watching
    finally:
        watching.over.set()
        thread.join()
        faulthandler.cancel_dump_traceback_later()


def unwatched(clock: PhaseClock | None = None) -> "RunningWatchdog":
    """Return an `on_step` without timeouts, which reports nothing."""
    watching = RunningWatchdog({STEP: math.inf}, kill=False, clock=clock or PhaseClock())
    watching.over.set()
    return watching


def timeouts(seconds: Timeouts) -> Mapping[str, float]:
    """Return the timeouts by phase."""
    by_phase = seconds if isinstance(seconds, Mapping) else {STEP: seconds}
    if STEP not in by_phase or not all(timeout > 0 for timeout in by_phase.values()):
        raise UsageError(
            f"a watchdog's timeout is {seconds}: give a number of seconds above 0, at least for 'step'."
        )
    return by_phase


class _Phase:
    """A context manager for one phase."""

    # A class, not `@contextmanager`: each step enters two phases, and a generator would take twice as long.

    __slots__ = ("_name", "_previous", "_watching")

    def __init__(self, watching: "RunningWatchdog", name: str):
        self._watching, self._name, self._previous = watching, name, name

    def __enter__(self) -> None:
        self._previous = self._watching.enter(self._name)

    def __exit__(self, *_: object) -> None:
        self._watching.enter(self._previous)


class RunningWatchdog:
    """The `on_step` function that `watchdog` returns. It takes the tick of each finished step."""

    def __init__(self, seconds: Mapping[str, float], kill: bool, clock: PhaseClock):
        self.clock = clock
        """The phase, the last step, and the seconds of each phase so far."""
        self.over = threading.Event()
        self._seconds, self._kill = seconds, kill
        self._timeouts = {**dict.fromkeys(_PART_OF_A_STEP, seconds[STEP]), **seconds}
        self._others_seconds = _OTHERS_TAKE * seconds[STEP]
        self._process, self._num_processes = jax.process_index(), jax.process_count()
        self._thread = threading.get_ident()
        self._backstop_seconds = 0.0
        """A quarter of the time for which the backstop was last postponed."""
        self._answers = 0
        """The number of answers that another process is working."""

    def __call__(self, tick: Tick) -> None:
        """Record that a step has finished."""
        self.clock.finish_step(tick.step)
        if self._seconds[STEP] > self._backstop_seconds:
            self.renew_backstop()

    def phase(self, name: str) -> "_Phase":
        """Measure the time of this block as the phase `name`. Call it from the thread that runs the steps."""
        return _Phase(self, name)

    def enter(self, phase: str) -> str:
        """Measure the time from now on as `phase`, until a step is done, and return the phase before."""
        previous = self.clock.enter(phase)
        # Each renewal starts a thread. With four renewals per step, that was the largest overhead of a run.
        # The next check corrects a backstop that is later than this phase needs.
        if self._timeouts.get(phase, self._others_seconds) > self._backstop_seconds:
            self.renew_backstop()
        return previous

    def hear(self, word: str) -> None:
        """Handle a message of another process, which says that it is waiting or that it is working."""
        if word == _WAITS and not self._is_waiting():
            processes.send_to_all(_WORKS)
        if word == _WORKS and self._is_waiting():
            self._answers += 1

    def watch(self) -> None:
        """Count timeouts in a row until the context ends. Each step and each phase resets the count.

        The time is counted in checks, not by the clock, so that a process has time to continue after it was
        suspended.
        """
        pause = min(self._seconds.values()) / _CHECKS
        turns, checks, num_timeouts = self._turns(), 0, 0
        while not self.over.wait(pause):
            self.renew_backstop()
            if turns != self._turns():
                turns, checks, num_timeouts = self._turns(), 0, 0
            checks += 1
            if checks * pause >= self._timeout():
                checks, num_timeouts = 0, num_timeouts + 1
                self._handle_timeout(num_timeouts)

    def _turns(self) -> int:
        return self.clock.turns + self._answers

    def _timeout(self) -> float:
        return self._timeouts.get(self.clock.phase, self._others_seconds)

    def _handle_timeout(self, num_timeouts: int) -> None:
        seconds, is_waiting = self._timeout(), self._is_waiting()
        num_left = (3 if is_waiting else 2) - num_timeouts
        if self._kill and num_left <= 0:
            processes.announce_exit(EXIT_HUNG)
            os._exit(EXIT_HUNG)
        if is_waiting:
            processes.send_to_all(_WAITS)
        problem = f"no step has finished for {num_timeouts * seconds:g} s"
        if (phase := self.clock.phase) != STEP:
            problem = f"{phase} has taken {num_timeouts * seconds:g} s and is not over"
        step = self.clock.step
        last = "there was no step yet" if step is None else f"the last step was {step}"
        threat = (
            f" In {num_left * seconds:g} s more it is ended with exit code {EXIT_HUNG}." if self._kill else ""
        )
        if is_waiting:
            threat = f" It waits for its devices, and so perhaps for another process.{threat}"
        # A report may block on a full pipe, on source files of a slow file system, or on a lock that the hung
        # thread holds. The watchdog's thread must not block.
        message = f"process {self._process}: {problem}; {last}.{threat}"
        threading.Thread(target=_report, args=(message,), daemon=True).start()

    def _is_waiting(self) -> bool:
        """Return whether the thread that runs the steps may be waiting for another process, which hangs."""
        return self._num_processes > 1 and is_waiting(sys._current_frames().get(self._thread))

    def renew_backstop(self) -> None:
        """Postpone the backstop, which acts if this thread cannot run because a hung call keeps the GIL."""
        if not self.over.is_set():
            self._backstop_seconds = self._timeout()
            faulthandler.dump_traceback_later(4 * self._backstop_seconds, file=2, exit=self._kill)


def _report(message: str) -> None:
    message = f"{message}\n{_stacks()}"
    with suppress(ValueError, OSError):  # stderr may be closed by then
        print_line(f"meshwright: {message}", sys.stderr)
    # Without handlers, logging would print it on stderr once more.
    if log.hasHandlers():
        log.error(message)


def _stacks() -> str:
    """Return the stacks of all threads by name, except that of the calling thread."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = {
        ident: frame for ident, frame in sys._current_frames().items() if ident != threading.get_ident()
    }
    return "\n".join(
        f"thread {names.get(ident, ident)}, most recent call last:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames.items()
    )
