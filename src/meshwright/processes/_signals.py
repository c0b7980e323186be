"""Signals that stop a run: it finishes the step, saves, and ends with an exit code that means "run it again".

    SIGTERM        a scheduler wants the machine: stop after this step       exit code 75
    Ctrl-C         the same                                                  exit code 130
    Ctrl-C again   the process ends at once

With several processes, all stop after the same step, whichever of them got the signal. JAX catches SIGTERM
then (its preemption notice) and chooses a step that no process has reached yet. Ctrl-C is sent on as SIGTERM.

SIGTERM before the first step, when there is nothing to save, ends the process even while XLA compiles.
Python calls signal handlers between two of its instructions, and XLA may compile for an hour in one. But
Python's own handler in C writes the number of each signal to a file descriptor at once (the wake-up
descriptor). A thread that reads it can end the process, because JAX releases Python's lock while it
compiles.
"""

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

import jax
from jax.experimental import multihost_utils

from meshwright.base._internal import print_line
from meshwright.errors import EXIT_AGAIN, EXIT_CTRL_C, Interrupted
from meshwright.processes._agree import gather
from meshwright.processes._member import member
from meshwright.processes._peers import announce_exit

_NOTE = b"meshwright: finishing this step and saving; press Ctrl-C again to stop now\n"
_SHOW_CURSOR = b"\x1b[?25h"


class Signals:
    """The signals that this process has received, as `stop_signals()` yields them."""

    def __init__(self) -> None:
        self.interruption: Interrupted | None = None
        """The error with the exit code, after `stop` has returned True; None if nothing stopped the run."""
        self.terminated = False
        """True after SIGTERM."""
        self.ctrl_c = False
        """True after Ctrl-C."""
        self.is_over = False
        """Set this to True when `stop` will not be called again."""
        self._is_main_thread = threading.current_thread() is threading.main_thread()

    @property
    def ending(self) -> bool:
        """True if all processes know that the run ends. With several processes, this is after `stop`."""
        alone = not jax.distributed.is_initialized()
        return self.interruption is not None or (alone and (self.terminated or self.ctrl_c))

    def stop(self, step: int) -> bool:
        """Return whether to stop after a step; the answer is the same on all processes. Collective.

        Call it after every step, on the thread that runs the steps.
        """
        # The number that JAX gets counts the calls; it is not the step. JAX chooses one more than the
        # highest number that any process has passed, starting with 0. A run that continues at step 1000,
        # and gets the signal before its first call, would never pass 1.
        is_agreed = (
            multihost_utils.reached_preemption_sync_point(next(member.sync_calls))
            if self.interruption is None and jax.distributed.is_initialized()
            else self.terminated or self.ctrl_c
        )
        if self.interruption is None and is_agreed:
            ctrl_c = any(gather(self.ctrl_c))
            cause, exit_code = ("Ctrl-C", EXIT_CTRL_C) if ctrl_c else ("SIGTERM", EXIT_AGAIN)
            self.interruption = Interrupted(
                f"stopped by {cause} after step {step}. Run the same command again to continue.",
                exit_code=exit_code,
            )
            member.exit_code = exit_code
        return self.interruption is not None

    @contextmanager
    def exiting_on_sigterm(self) -> Iterator[None]:
        """End this process with exit code 75 soon after SIGTERM in the block, where nothing can be saved yet.

        If the block ends within two seconds after the signal, `stop` ends the run instead.
        """
        if not self._is_main_thread:
            yield
            return
        with ExitStack() as stack:
            if jax.distributed.is_initialized():
                stack.enter_context(_replacing_jax_handler(self.on_sigterm, lambda: self.terminated))
            stack.enter_context(_exiting_on_sigterm())
            yield

    def on_sigterm(self, number: int, frame: FrameType | None) -> None:
        """Note that SIGTERM came. This is a signal handler."""
        self.terminated = True


@contextmanager
def stop_signals() -> Iterator[Signals]:
    """Handle SIGTERM and Ctrl-C in the block, and yield the signals that came.

    The handlers from before are restored afterwards. Python allows handlers on the main thread only. On
    another thread (in a notebook or a Ray worker), signals do what they did before; with several processes,
    JAX's preemption notice still works.

    Example:
      >>> import os, signal
      >>> with mw.parallel.stop_signals() as signals:
      ...     for step in range(1, 10):
      ...         if step == 3:
      ...             os.kill(os.getpid(), signal.SIGTERM)
      ...         if signals.stop(step):
      ...             break
      >>> print(step, signals.interruption)
      3 stopped by SIGTERM after step 3. Run the same command again to continue.
    """
    received = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    previous = {number: signal.signal(number, handler) for number, handler in _handlers(received).items()}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _handlers(received: Signals) -> dict[int, Callable[[int, FrameType | None], None]]:
    def on_ctrl_c(number: int, frame: FrameType | None) -> None:
        received.ctrl_c = True
        # First of all, let the next Ctrl-C end the process by the system's own handler: Python's handlers may
        # have to wait for minutes of C++. But do not end an interactive session.
        signal.signal(number, signal.default_int_handler if hasattr(sys, "ps1") else signal.SIG_DFL)
        # Not `print`: the signal may have come in the middle of one. A live panel hides the cursor.
        os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + _NOTE)
        # JAX's notice would wait for processes that leave.
        if jax.distributed.is_initialized() and not received.is_over and received.interruption is None:
            os.kill(os.getpid(), signal.SIGTERM)

    if jax.distributed.is_initialized():
        # A handler of SIGTERM would replace JAX's.
        return {signal.SIGINT: on_ctrl_c}
    return {signal.SIGINT: on_ctrl_c, signal.SIGTERM: received.on_sigterm}


_GRACE_SECONDS = 2
"""The seconds that the main thread has to end the run itself."""
_PRINT_SECONDS = 1
_OVER = b"\0"
"""Wakes the thread at the end of the block; no signal has the number 0."""
_NOTHING_TO_SAVE = (
    "stopped by SIGTERM before the first step: there is nothing new to save. Run the same command again."
)


@contextmanager
def _exiting_on_sigterm() -> Iterator[None]:
    """End this process with exit code 75, soon after SIGTERM in the block.

    Call it on the main thread, with a Python handler of SIGTERM.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(reader, over), name="meshwright-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(previous)
        writer.send(_OVER)
        thread.join()
        reader.close()
        writer.close()


def _watch(reader: socket.socket, over: threading.Event) -> None:
    while not over.is_set():
        if signal.SIGTERM in reader.recv(64) and not over.wait(_GRACE_SECONDS):
            _end()


def _end() -> None:
    announce_exit(EXIT_AGAIN)
    # Print on a thread: the main thread may hold the lock of stderr, and a full pipe would block forever.
    note = threading.Thread(target=lambda: print_line(_NOTHING_TO_SAVE, sys.stderr), daemon=True)
    note.start()
    note.join(_PRINT_SECONDS)
    os._exit(EXIT_AGAIN)


@contextmanager
def _replacing_jax_handler(handler: Callable[..., None], is_terminated: Callable[[], bool]) -> Iterator[None]:
    """Replace JAX's handler of SIGTERM in the block."""
    libc, previous = ctypes.CDLL(None), ctypes.create_string_buffer(1024)  # larger than a `struct sigaction`
    libc.sigaction(signal.SIGTERM, None, previous)
    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        libc.sigaction(signal.SIGTERM, previous, None)
        if is_terminated():
            os.kill(os.getpid(), signal.SIGTERM)
