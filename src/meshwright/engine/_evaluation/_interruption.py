"""A hook before each batch of an evaluation, so that a stopping run can interrupt it and save."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


class EvaluationInterrupted(Exception):  # noqa: N818 - no error: the evaluation is repeated when the run resumes
    """An evaluation was interrupted, so that the state can be saved in time."""


BeforeBatch = Callable[[], None]
"""A function that is called before each batch of an evaluation and may raise `EvaluationInterrupted`.

All processes call it before the same batch.
"""


def calling_before_each(batches: Iterable[T], before_batch: BeforeBatch) -> Iterator[T]:
    """Yield each of `batches`, after a call of `before_batch`."""
    for batch in batches:
        before_batch()
        yield batch
