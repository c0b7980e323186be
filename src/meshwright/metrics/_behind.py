"""Writers that take their time, behind the loop's back."""

import logging
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from meshwright.metrics._kinds import Values
from meshwright.metrics._writers import Writer

_MOST_WAITING = 100

log = logging.getLogger("meshwright")


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
