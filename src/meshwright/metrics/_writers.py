"""Where reports go."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from meshwright.metrics._kinds import Values


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
