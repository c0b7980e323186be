"""Writers: where reports go, to several of them, or to one that takes its time behind the loop."""

import logging
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from meshwright.metrics._kinds import Values

_MOST_WAITING = 100

log = logging.getLogger("meshwright")


class Writer(Protocol):
    """Takes a report: the values known after a step. Steps never go down, but one may come twice.

    Every process of a run has the same values. Give a writer to process 0 only, and `tee()` to
    the others.
    """

    def __call__(self, step: int, values: Values, /) -> None: ...


@runtime_checkable
class Screen(Protocol):
    """A writer for people may be told more than what is reported. `Console` is one."""

    def first(self, step: int, values: Values, /) -> None:
        """Take the values of the first step alone, long before they are part of a report."""
        ...

    def evaluated(self, step: int, scores: Values, /) -> None:
        """Take the scores of an evaluation, which were reported just now."""
        ...


@dataclass(frozen=True)
class Tee:
    """What `tee` returns."""

    writers: tuple[Writer, ...]

    def __call__(self, step: int, values: Values, /) -> None:
        """Hand the report on."""
        for writer in self.writers:
            writer(step, dict(values))


def tee(*writers: Writer) -> Writer:
    """Return a writer that hands each report to all of `writers`, in order; `tee()` writes nothing.

    Each gets a dictionary of its own.
    """
    return Tee(writers)


def screens_of(write: Writer) -> list[Screen]:
    """Return `write` if it is a screen, else those among its `writers`, if it hands reports on to some."""
    if isinstance(write, Screen):
        return [write]
    return [screen for each in getattr(write, "writers", ()) for screen in screens_of(each)]


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
