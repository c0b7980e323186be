"""A hook before each batch of an evaluation, so that a stopping run can interrupt it and save."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


class LeftOff(Exception):  # noqa: N818 - no error: the evaluation is repeated when the run resumes
    """An evaluation was interrupted, so that the state can be saved in time."""


Look = Callable[[], None]
"""A function that is called before each batch of an evaluation and may raise `LeftOff`.

All processes call it before the same batch.
"""


def looking(batches: Iterable[T], look: Look) -> Iterator[T]:
    """Yield each of `batches`, after a call of `look`."""
    for batch in batches:
        look()
        yield batch
