"""The end of a process whose run fails.

A process that ends normally meets the others in JAX's exit handler, where process 0, which holds the
coordination service, waits for all. After an error on one process nobody else comes there: it would wait
minutes and then be aborted in C++ (exit code 134). So it says that it leaves, and leaves at once.
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

from meshwright.errors import EXIT_CTRL_C, EXIT_DONE, EXIT_FAILED, MeshwrightError
from meshwright.process._compare import failed_elsewhere, share_error
from meshwright.process._member import member
from meshwright.process._peers import begin_shared, lost_peer, say_at_end, say_left

_LEAD_LINGERS_SECONDS = 2
"""When process 0 goes, JAX aborts the others. If they failed as well, they may say so first."""
_OTHERS_LINGER_SECONDS = 1
"""Seconds by which processes that end because of another's error wait, so that it fails first."""


def abandon(exit_code: int) -> None:
    """End this process now with `exit_code`, without waiting for the run's other processes.

    For the end of a program that has failed and has said so. Not collective. Returns only where there
    are no other processes: the interpreter may then end as usual.
    """
    if jax.distributed.is_initialized():
        _leave_now(exit_code)


def _leave_now(exit_code: int) -> None:
    say_left(exit_code)
    sys.stdout.flush()
    sys.stderr.flush()
    logging.shutdown()
    time.sleep(max(member.exit_delay_seconds, _OTHERS_LINGER_SECONDS if failed_elsewhere() else 0))
    os._exit(exit_code)


@contextlib.contextmanager
def shared_work() -> Iterator[None]:
    """Around what all processes do together, or as a decorator of it: none of them can leave it alone.

    An error that only tells of a lost process is raised as a `PeersError`; and a `sys.exit` in the block ends
    the process without waiting for the others, which wait for it.
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


def leave_at_once_after_a_crash(process_id: int | None) -> None:
    """Make an uncaught exception in a script end in `abandon`, after its traceback.

    One that only tells of a lost process is told in a sentence, without a traceback.
    """
    # jax.process_index() would wait for the others' devices.
    member.exit_delay_seconds = _LEAD_LINGERS_SECONDS if process_id == 0 else 0
    show = sys.excepthook

    def show_or_tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if lost := lost_peer(error):
            print(f"meshwright: error: {lost}", file=sys.stderr, flush=True)
        else:
            show(kind, error, trace)

    sys.excepthook = show_or_tell
    atexit.register(_leave)


def _leave() -> None:
    error = getattr(sys, "last_value", None)  # set by the interpreter when it shows a traceback
    if error is not None:
        share_error(error)
        _leave_now(_exit_code(error))
    if member.system_exit is not None:
        code = member.system_exit.code
        abandon(code if isinstance(code, int) else EXIT_DONE if code is None else EXIT_FAILED)
    say_at_end()


def _exit_code(error: BaseException) -> int:
    if lost := lost_peer(error):
        return lost.exit_code
    if isinstance(error, MeshwrightError):
        return error.exit_code
    return EXIT_CTRL_C if isinstance(error, KeyboardInterrupt) else EXIT_FAILED
