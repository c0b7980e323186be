"""Means over batches: totals and counts are summed over all batches and divided once."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

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
