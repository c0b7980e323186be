"""Where reports go."""

from typing import Protocol

from meshwright.metrics._kinds import Values


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
