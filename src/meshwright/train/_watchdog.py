"""The loop's `beat`: notices that steps no longer finish, says where every thread stands, and may end it.

It lives in a thread of its own, which needs Python's lock and nothing else: JAX gives the lock up while it
waits for devices and other processes. For a call that keeps the lock, `faulthandler`, which does without
it, stands behind.
"""

import faulthandler
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress

import jax

from meshwright.errors import EXIT_HUNG, UsageError
from meshwright.when import Tick

log = logging.getLogger("meshwright")


@contextmanager
def watchdog(timeout_seconds: float, *, kill: bool = False) -> Generator["Watchdog", None, None]:
    """Open a `beat` that reports when no step has finished for `timeout_seconds`, and again after as many.

        with mw.watchdog(600, kill=True) as beat:
            mw.fit(..., beat=beat)

    A report, on stderr and in the log, has the process, the last step and the stacks of all threads. Time
    runs from entering the context. What may rightly take long, such as compiling, evaluating and the last
    save, goes into `with beat.paused():`. Nothing is written while all is well, and the thread ends with
    the context, whatever ends that.

    Args:
      kill: at the second timeout in a row end the process at once, with exit code 5, as `os._exit` does: no
        handlers, nothing flushed, nobody waited for, also where the main thread hangs in C++. (JAX holds
        SIGTERM back, so a hung run would not die of that.) Where a call hangs that keeps Python's lock, the
        process is ended with exit code 1 after three timeouts. A process that was suspended for so long
        may then be ended too.

    Raises:
      UsageError: `timeout_seconds` is not positive.
    """
    if not timeout_seconds > 0:
        raise UsageError(f"watchdog: timeout_seconds={timeout_seconds}; it must be positive.")
    watching = Watchdog(timeout_seconds, kill)
    thread = threading.Thread(target=watching.watch, name="meshwright-watchdog", daemon=True)
    watching.renew_backstop()
    thread.start()
    try:
        yield watching
    finally:
        watching.over.set()
        thread.join()
        faulthandler.cancel_dump_traceback_later()


class Watchdog:
    """Made by `watchdog`; called with the tick of each step that has finished."""

    def __init__(self, timeout_seconds: float, kill: bool):
        self.over = threading.Event()
        self._seconds, self._kill = timeout_seconds, kill
        self._process = jax.process_index()
        self._pauses = 0
        self._heard: tuple[int | None, float] = (None, time.monotonic())

    def __call__(self, tick: Tick) -> None:
        """A step has finished."""
        self._heard = (tick.step, time.monotonic())

    @contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Do not count the time of this block. For the thread that runs the steps."""
        self._pauses += 1
        try:
            yield
        finally:
            self._heard = (self._heard[0], time.monotonic())
            self._pauses -= 1

    def watch(self) -> None:
        """Until it is over: count timeouts in a row. They begin anew with each step and with each pause.

        Counted one by one, so that a process which was suspended gets its time to go on.
        """
        heard, num_timeouts, deadline = self._heard, 0, self._heard[1] + self._seconds
        while not self.over.wait(deadline - time.monotonic()):
            self.renew_backstop()
            if self._pauses or heard is not self._heard:
                heard, num_timeouts = self._heard, 0
                deadline = self._seconds + (time.monotonic() if self._pauses else heard[1])
            else:
                num_timeouts, deadline = num_timeouts + 1, time.monotonic() + self._seconds
                self._time_is_up(heard[0], num_timeouts)

    def _time_is_up(self, step: int | None, num_timeouts: int) -> None:
        if self._kill and num_timeouts == 2:
            os._exit(EXIT_HUNG)
        # Reporting may block: on a full pipe, on source files that are far, on a lock that the hung thread
        # holds. This thread must not.
        report = threading.Thread(target=self._report, args=(step, num_timeouts), daemon=True)
        report.start()

    def _report(self, step: int | None, num_timeouts: int) -> None:
        last = "there was none yet" if step is None else f"the last was step {step}"
        threat = f" In {self._seconds:g} s more it is ended with exit code {EXIT_HUNG}." if self._kill else ""
        said = (
            f"process {self._process}: no step has finished for {num_timeouts * self._seconds:g} s; {last}."
            f"{threat}\n{_stacks()}"
        )
        with suppress(ValueError, OSError):  # stderr may be closed by then
            print(f"meshwright: {said}", file=sys.stderr, flush=True)
        if log.hasHandlers():  # without any, logging would print it on stderr once more
            log.error(said)

    def renew_backstop(self) -> None:
        """Put off what happens when this thread cannot run, because a hung call keeps Python's lock."""
        if self._pauses:
            faulthandler.cancel_dump_traceback_later()
        else:
            faulthandler.dump_traceback_later(3 * self._seconds, file=2, exit=self._kill)


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
