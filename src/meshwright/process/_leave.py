"""How a process leaves a run that goes wrong.

A process that ends normally meets the others in JAX's exit handler, where process 0, which holds the
coordination service, waits for all. After an error on one process nobody else comes there: it would wait
minutes and then be aborted in C++ (exit code 134). So it leaves at once, and the others, whose
connections break, learn of it in their next collective.
"""

import atexit
import logging
import os
import sys
import time

import jax

from meshwright.errors import EXIT_CTRL_C, EXIT_FAILED, MeshwrightError
from meshwright.process._alike import came_from_another, tell

_LEAD_LINGERS_SECONDS = 2
"""When process 0 goes, JAX aborts the others. If they failed as well, they may say so first."""
_OTHERS_LINGER_SECONDS = 1
"""Of those that end because of another's error, so that a launcher sees that one fail first."""
_lingers_seconds = 0


def abandon(exit_code: int) -> None:
    """End this process now with `exit_code`, without waiting for the run's other processes.

    For the end of a program that has failed and has said so. Not collective. Returns only where there
    are no other processes: the interpreter may then end as usual.
    """
    if jax.distributed.is_initialized():
        _leave(exit_code)


def _leave(exit_code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    logging.shutdown()
    time.sleep(max(_lingers_seconds, _OTHERS_LINGER_SECONDS if came_from_another() else 0))
    os._exit(exit_code)


def leave_at_once_after_a_crash(process_id: int | None) -> None:
    """Make an uncaught exception in a script end in `abandon`, after its traceback."""
    global _lingers_seconds  # jax.process_index() would wait for the others' devices
    _lingers_seconds = _LEAD_LINGERS_SECONDS if process_id == 0 else 0
    atexit.register(_abandon_if_crashed)


def _abandon_if_crashed() -> None:
    error = getattr(sys, "last_value", None)  # set by the interpreter when it prints a traceback
    if error is not None:
        tell(error)
        others = EXIT_CTRL_C if isinstance(error, KeyboardInterrupt) else EXIT_FAILED
        _leave(error.exit_code if isinstance(error, MeshwrightError) else others)
