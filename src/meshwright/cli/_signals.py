"""Signals before and after the run of a command, which handles them itself in between."""

import os
import signal

from meshwright.errors import EXIT_OF_STOPS

STOPPED = "stopped at once; what was saved before stays saved"


def end_at_once() -> None:
    """From now on, end this process at once on Ctrl-C and SIGTERM. Call it before JAX is imported.

    Python's KeyboardInterrupt is lost where the garbage collector calls JAX, and is another error in a class.
    """
    for number in EXIT_OF_STOPS:
        signal.signal(number, _end)


def ignore_signals() -> None:
    """Let no signal but a second Ctrl-C change how a run ends that has ended, if `end_at_once` was called."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, lambda number, _: signal.signal(number, signal.SIG_DFL))


def _end(number: int, _: object) -> None:
    os.write(2, f"{STOPPED}\n".encode())  # not `print`: the signal may have come in the middle of one
    os._exit(EXIT_OF_STOPS[number])
