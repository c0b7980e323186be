"""Loops over the batches of an evaluation: their means, and a hook by which a stopping run interrupts it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh

from meshwright.observe._internal import Mean, merge
from meshwright.parallel._internal import in_mesh
from meshwright.training._internal import at_most_ahead

Scores = dict[str, float]
"""Numbers by name, as an evaluation reports them."""


def mean_over(
    compute: Callable[..., Mapping[str, Mean]], state: Any, batches: Iterable[tuple[Any, ...]], mesh: Mesh
) -> Scores:
    """Return the means over all batches; an empty dictionary if there are none."""
    means, wait = [], at_most_ahead()
    with in_mesh(mesh):  # so that models may constrain by bare PartitionSpecs
        for arguments in batches:
            means.append(compute(state, *arguments))
            wait(means[-1])
    return merge(jax.device_get(means))


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
