"""An evaluation looks before each batch whether to leave off, so that a run that is to stop saves in time."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


class LeftOff(Exception):  # noqa: N818 - it is not an error: the evaluation is made when the run goes on
    """An evaluation was left off in the middle, so that the state can be saved in time."""


Look = Callable[[], None]
"""Is called before each batch of an evaluation, at the same one on all processes, and may raise `LeftOff`."""


def looking(batches: Iterable[T], look: Look) -> Iterator[T]:
    """Yield what `batches` has, having called `look` before each."""
    for batch in batches:
        look()
        yield batch
