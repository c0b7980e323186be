"""Where reports go."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol, cast

from meshwright.arguments import num_required
from meshwright.errors import UsageError
from meshwright.metrics._kinds import Values


class Writer(Protocol):
    """Takes a report: the values known after a step. Steps never go down, but one may come twice.

    Every process of a run has the same values. Give a writer to process 0 only, and `tee()` to
    the others.
    """

    def __call__(self, step: int, values: Values, /) -> None: ...


Tracker = Writer | Callable[[], AbstractContextManager[Writer]]
"""A writer, or what opens one: `functools.partial(mw.metrics.wandb, project="digits")`."""


def tee(*writers: Writer) -> Writer:
    """Return a writer that hands each report to all of `writers`, in order; `tee()` writes nothing."""

    def write(step: int, values: Values, /) -> None:
        for writer in writers:
            writer(step, values)

    return write


def is_writer(tracker: Tracker) -> bool:
    """Return whether a tracker is a writer, and not what opens one: whether it takes a step and values.

    Raises:
      UsageError: it is neither.
    """
    number = num_required(tracker, "tracker")
    if number not in (0, 2):
        raise UsageError(
            f"a tracker takes (step, values), or nothing and opens what does; this takes {number} arguments: "
            f"{tracker}."
        )
    return number == 2


def open_trackers(opened: ExitStack, *trackers: Tracker) -> Writer:
    """Return one writer to all of `trackers`, of which `opened` closes what had to be opened."""
    return tee(*(_open(opened, tracker) for tracker in trackers))


def _open(opened: ExitStack, tracker: Tracker) -> Writer:
    if is_writer(tracker):
        return cast(Writer, tracker)
    return opened.enter_context(cast(Callable[[], AbstractContextManager[Writer]], tracker)())
