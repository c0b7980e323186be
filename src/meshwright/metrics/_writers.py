"""Writers: where reports go, to several of them, or to one that takes its time behind the loop."""

import logging
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol

from meshwright.metrics._kinds import Values

_MOST_WAITING = 100

log = logging.getLogger("meshwright")


class Writer(Protocol):
    """Takes a report: the values known after a step. Steps never go down, but one may come twice.

    Every process of a run has the same values. Give a writer to process 0 only, and `tee()` to
    the others.
    """

    def __call__(self, step: int, values: Values, /) -> None: ...


def tee(*writers: Writer) -> Writer:
    """Return a writer that hands each report to all of `writers`, in order; `tee()` writes nothing.

    Each gets a dictionary of its own.
    """

    def write(step: int, values: Values, /) -> None:
        for writer in writers:
            writer(step, dict(values))

    return write


@contextmanager
def behind(write: Writer) -> Generator[Writer, None, None]:
    """Open a writer that hands reports, in order, to a thread that calls `write`, and does not wait for it.

    Leaving waits until all are written. After one at which `write` raised no other is written, and what it
    raised is raised by the next report or on leaving; where another exception is on its way, it is logged.
    While a hundred reports wait, the next one waits, too. A process that is killed loses those that wait.
    """
    failures: list[Exception] = []
    room = threading.Semaphore(_MOST_WAITING)

    def write_next(step: int, values: Values) -> None:
        try:
            if not failures:
                write(step, values)
        except Exception as error:
            failures.append(error)
        finally:
            room.release()

    def hand_over(step: int, values: Values, /) -> None:
        if failures:
            raise failures[0]
        room.acquire()
        thread.submit(write_next, step, dict(values))

    try:
        with ThreadPoolExecutor(1, "meshwright-reports") as thread:
            yield hand_over
    except BaseException as error:
        if failures and error is not failures[0]:
            log.error("reports were lost", exc_info=failures[0])
        raise
    if failures:
        raise failures[0]
