"""Means over batches: computed one after the other, divided once."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from meshwright.metrics import Mean, merge
from meshwright.train import RUN_AHEAD, at_most_ahead

Scores = dict[str, float]
"""Numbers by name, as an evaluation reports them."""


def mean_over(
    compute: Callable[..., Mapping[str, Mean]], state: Any, batches: Iterable[tuple[Any, ...]], mesh: Mesh
) -> Scores:
    """Return the means over all batches; nothing if there are none.

    Args:
      compute: A compiled function of the state and of all that one of `batches` holds.
    """
    found, wait = [], at_most_ahead(RUN_AHEAD)
    with jax.set_mesh(mesh):  # so that models may constrain by bare PartitionSpecs
        for arguments in batches:
            found.append(compute(state, *arguments))
            wait(found[-1])
    return merge(jax.device_get(found))
