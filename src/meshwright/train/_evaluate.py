"""Scores over a whole set of examples: every one counted once, none left out, none twice."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from meshwright.errors import UsageError
from meshwright.metrics import Mean, merge
from meshwright.sharding import Layout
from meshwright.when import Due, Tick, When

PyTree = Any
Measure = Callable[[PyTree, PyTree], Mapping[str, jax.Array]]
"""`(params, batch) -> {name: values}` with a value, or an array of them, for each example: [batch, ...]."""

WeightedBatch = tuple[PyTree, Any]
"""A batch and float32[batch]: 1 for an example that counts, 0 for one that only fills the batch."""


def evaluator(
    measure: Measure, data: Callable[[], Iterable[WeightedBatch]], layout: Layout, when: When
) -> Callable[[Tick, Any], dict[str, float] | None]:
    """Return the loop's `evaluate`: when due, the mean of each of `measure`'s values over all of `data`.

    Args:
      data: called for each evaluation; yields batches of one shape and the weights of their examples.
      when: due at these steps, and after the last update.

    Raises (when called):
      UsageError: `measure` returns something that has no value for each example.
    """
    score = jax.jit(
        lambda params, batch, weights: _weighed(measure(params, batch), weights),
        out_shardings=layout.replicated,
    )
    due = Due(when)

    def evaluate(tick: Tick, state: Any) -> dict[str, float] | None:
        if not due(tick):
            return None
        with jax.set_mesh(layout.mesh):
            parts = [score(state.params, batch, weights) for batch, weights in data()]
        return merge(jax.device_get(parts))

    return evaluate


def _weighed(values: Mapping[str, jax.Array], weights: jax.Array) -> dict[str, Mean]:
    for name, x in values.items():
        if x.shape[:1] != weights.shape:
            raise UsageError(
                f"an evaluation needs a value for each example: {name} has shape {x.shape}, the batch "
                f"{weights.shape[0]} examples.\n  Return the values before averaging, [batch, ...]; "
                "which of them count is decided here."
            )
    return {name: Mean.of(x, jnp.expand_dims(weights, range(1, x.ndim))) for name, x in values.items()}
