"""The end of a process whose run fails.

A process that ends normally waits for the others in JAX's exit handler, because process 0 runs the
coordination service for all. After an error on one process, the others do not come there: the process would
wait for minutes and then be aborted in C++ (exit code 134). So it tells the others, and ends at once.
"""

import atexit
import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from types import TracebackType

import jax

from meshwright.base._internal import print_line
from meshwright.errors import EXIT_CTRL_C, EXIT_DONE, EXIT_FAILED, MeshwrightError
from meshwright.processes._compare import failed_elsewhere, share_error
from meshwright.processes._member import member
from meshwright.processes._peers import announce_exit, begin_shared, leave_together, lost_peer

_LEAD_DELAY_SECONDS = 2
"""The seconds that process 0 waits before it ends. Then JAX aborts the others, which may have own errors."""
_OTHERS_DELAY_SECONDS = 1
"""The seconds that a process waits before it ends because of another's error; the other one ends first."""


def exit_now(exit_code: int) -> None:
    """End this process now, without waiting for the other processes. Not collective.

    Call it at the end of a program that has failed and has printed its error. It returns only if there are no
    other processes; then Python may end as usual.
    """
    if jax.distributed.is_initialized():
        _end_process(exit_code)


def _end_process(exit_code: int) -> None:
    announce_exit(exit_code)
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None in a process without them
        stream.flush()
    logging.shutdown()
    time.sleep(max(member.exit_delay_seconds, _OTHERS_DELAY_SECONDS if failed_elsewhere() else 0))
    os._exit(exit_code)


@contextlib.contextmanager
def collective() -> Iterator[None]:
    """Mark work that all processes do together; use it as a context manager or decorator.

    An error in the block that only comes from the loss of another process is raised as a `PeersError`. After
    `sys.exit` in the block, the process ends without waiting for the others, which wait for it.
    """
    begin_shared()
    try:
        yield
    except SystemExit as error:
        member.system_exit = error
        raise
    except Exception as error:
        lost = lost_peer(error)
        if lost is None or lost is error:
            raise
        raise lost from error


def exit_after_uncaught_errors(process_id: int | None) -> None:
    """End this process without waiting for the others when a script ends with an uncaught exception.

    The traceback is printed first. An exception that only comes from the loss of another process is printed
    as one sentence.
    """
    member.exit_delay_seconds = _LEAD_DELAY_SECONDS if process_id == 0 else 0
    print_traceback = sys.excepthook

    def print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if lost := lost_peer(error):
            print_line(f"meshwright: error: {lost}", sys.stderr)
        else:
            print_traceback(kind, error, trace)

    sys.excepthook = print_error
    atexit.register(_at_exit)


def _at_exit() -> None:
    # Python sets it when it prints a traceback.
    error = getattr(sys, "last_value", None)
    if error is not None:
        share_error(error)
        _end_process(_exit_code(error))
    if member.system_exit is not None:
        code = member.system_exit.code
        exit_now(code if isinstance(code, int) else EXIT_DONE if code is None else EXIT_FAILED)
    leave_together()


def _exit_code(error: BaseException) -> int:
    if lost := lost_peer(error):
        return lost.exit_code
    if isinstance(error, MeshwrightError):
        return error.exit_code
    return EXIT_CTRL_C if isinstance(error, KeyboardInterrupt) else EXIT_FAILED
