"""Writers: the receivers of reports, several at once, or one in the background."""

import logging
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from meshwright.observe._kinds import Values

_MOST_WAITING = 100

log = logging.getLogger("meshwright")


class Writer(Protocol):
    """The receiver of reports: a function of a step and its values.

    Steps never go down, but a step may come twice. All processes of a run have the same values, so give a
    writer to process 0 only, and `tee()` to the others.
    """

    def __call__(self, step: int, values: Values, /) -> None: ...


@runtime_checkable
class Screen(Protocol):
    """A writer that also shows things which are not reports, such as `Console`."""

    def first(self, step: int, values: Values, /) -> None:
        """Show the metrics of the first step alone, before the first report."""
        ...

    def evaluated(self, step: int, scores: Values, /) -> None:
        """Show the scores of an evaluation, which have just been reported."""
        ...


@dataclass(frozen=True)
class Tee:
    """A writer to several writers; `tee` makes it."""

    writers: tuple[Writer, ...]

    def __call__(self, step: int, values: Values, /) -> None:
        """Pass the report on."""
        for writer in self.writers:
            # Each writer gets a copy of its own, which it may change.
            writer(step, dict(values))


def tee(*writers: Writer) -> Writer:
    """Return a writer that passes each report to several writers, in order.

    Args:
      writers: The writers; each gets its own copy of the values. Without any, nothing is written.

    Example:
      >>> write = mw.observe.tee(mw.observe.jsonl("metrics.jsonl"), print)
      >>> write(50, {"loss": 0.25})
      50 {'loss': 0.25}
    """
    return Tee(writers)


def screens_of(write: Writer) -> list[Screen]:
    """Return the screens that a writer writes to."""
    if isinstance(write, Screen):
        return [write]
    return [screen for writer in getattr(write, "writers", ()) for screen in screens_of(writer)]


@contextmanager
def behind(write: Writer) -> Generator[Writer, None, None]:
    """Open a writer that does not wait: a thread in the background calls `write` with each report, in order.

    Leaving the context waits until all reports are written. If `write` raises, no later report is written,
    and its exception is raised by the next report or on leaving the context; it is only logged if another
    exception is being raised then. While 100 reports are waiting, the next one waits, too. A killed process
    loses the reports that are waiting.

    Args:
      write: A slow writer, such as one that waits for a server.

    Example:
      >>> with mw.observe.behind(print) as write:
      ...     write(50, {"loss": 0.25})
      50 {'loss': 0.25}
    """
    failures: list[Exception] = []
    free_slots = threading.Semaphore(_MOST_WAITING)

    def write_next(step: int, values: Values) -> None:
        try:
            if not failures:
                write(step, values)
        except Exception as error:
            failures.append(error)
        finally:
            free_slots.release()

    def hand_over(step: int, values: Values, /) -> None:
        if failures:
            raise failures[0]
        free_slots.acquire()
        # A copy, as the caller may change the values while they wait.
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
