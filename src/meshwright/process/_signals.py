"""Being told to stop: finish the step, save, and end with a code that says "run me again".

    SIGTERM        a scheduler wants the machine: stop after this step       exit code 75
    Ctrl-C         the same                                                  exit code 130
    Ctrl-C again   the process is ended, in the middle of whatever it does

With several processes all stop after one agreed step, whichever of them was told. JAX holds back SIGTERM
there (its preemption notice) and counts out a step that none has reached yet; Ctrl-C is passed on as SIGTERM.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

import jax
from jax.experimental import multihost_utils

from meshwright.errors import EXIT_AGAIN, EXIT_CTRL_C, Interrupted
from meshwright.process._agree import gather
from meshwright.process._exit_on_sigterm import exiting_on_sigterm, replacing_jax_handler
from meshwright.process._member import member

_NOTE = b"meshwright: finishing this step and saving; press Ctrl-C again to stop now\n"
_SHOW_CURSOR = b"\x1b[?25h"


class Signals:
    """Made by `signals()`; asked after each step."""

    def __init__(self) -> None:
        self.interruption: Interrupted | None = None
        """Set when `stop` has answered True; has the exit code. A run that ended by itself has none."""
        self.terminated = False
        self.ctrl_c = False
        self._listens = threading.current_thread() is threading.main_thread()

    @property
    def ending(self) -> bool:
        """True when all processes know that the run ends: at once where there is one, else after `stop`."""
        alone = not jax.distributed.is_initialized()
        return self.interruption is not None or (alone and (self.terminated or self.ctrl_c))

    def stop(self, step: int) -> bool:
        """Return whether to stop after `step`, one answer on all processes. Collective.

        Call it after every step, from the thread that runs the steps.
        """
        if self.interruption is None and self._is_agreed():
            ctrl_c = any(gather(self.ctrl_c))
            cause, exit_code = ("Ctrl-C", EXIT_CTRL_C) if ctrl_c else ("SIGTERM", EXIT_AGAIN)
            self.interruption = Interrupted(
                f"stopped by {cause} after step {step}. Run the same command again to continue.",
                exit_code=exit_code,
            )
        return self.interruption is not None

    def _is_agreed(self) -> bool:
        if jax.distributed.is_initialized():
            return _reached_sync_point()
        return self.terminated or self.ctrl_c

    @contextmanager
    def exiting_on_sigterm(self) -> Iterator[None]:
        """End this process in the block, with exit code 75, soon after SIGTERM: there is nothing to save.

        What takes no longer than a moment is ended by `stop`, as ever.
        """
        if not self._listens:
            yield
            return
        with ExitStack() as stack:
            if jax.distributed.is_initialized():
                stack.enter_context(replacing_jax_handler(self.on_terminate, lambda: self.terminated))
            stack.enter_context(exiting_on_sigterm())
            yield

    def on_terminate(self, number: int, frame: FrameType | None) -> None:
        """Take SIGTERM, as a handler of signals."""
        self.terminated = True


@contextmanager
def signals() -> Iterator[Signals]:
    """Listen for SIGTERM and Ctrl-C in the block; give what `stop` and the end of the run need to know.

    The handlers that were there before are put back afterwards. Outside of the main thread (a notebook's
    or a Ray worker's) Python allows no handlers, so signals do there what they did before; with several
    processes JAX's own notice still works.
    """
    heard = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield heard
        return
    previous = {number: signal.signal(number, handler) for number, handler in _handlers(heard).items()}
    try:
        yield heard
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _handlers(heard: Signals) -> dict[int, Callable[[int, FrameType | None], None]]:
    def on_ctrl_c(number: int, frame: FrameType | None) -> None:
        heard.ctrl_c = True
        # Before the note that asks for it. The next one must not wait for Python's turn, which may be behind
        # minutes of waiting in C++. An interactive session, though, is not ours to end.
        signal.signal(number, signal.default_int_handler if hasattr(sys, "ps1") else signal.SIG_DFL)
        # Not print: the signal may have come in the middle of one. A live panel hides the cursor.
        os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + _NOTE)
        if jax.distributed.is_initialized():
            os.kill(os.getpid(), signal.SIGTERM)

    if jax.distributed.is_initialized():
        return {signal.SIGINT: on_ctrl_c}  # a handler for SIGTERM would take it away from JAX
    return {signal.SIGINT: on_ctrl_c, signal.SIGTERM: heard.on_terminate}


def _reached_sync_point() -> bool:
    """Ask JAX whether this is the agreed step, counting the questions instead of naming the step.

    JAX agrees on one more than the highest number that any process has asked about, and starts at 0. A
    run resumed at step 1000 that was told to stop before its first question would never ask about 1.
    """
    return multihost_utils.reached_preemption_sync_point(next(member.questions))
