"""Averages of values of each example. Every example counts exactly once."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.base._internal import PyTree, collector_paused, in_order
from meshwright.engine._evaluation._batches import Scores, mean_over
from meshwright.errors import UsageError
from meshwright.observe._internal import Mean
from meshwright.parallel._internal import Layout, in_mesh, with_rewrites
from meshwright.processes import _internal as processes
from meshwright.program._internal import check_lookups
from meshwright.training._internal import ComputeDtype, eval_params, narrowing

T = TypeVar("T")

Measure = Callable[[PyTree, PyTree], Mapping[str, jax.Array | Mean]]
"""`(params, batch) -> {name: values}` with a value, or an array of values, for each example: [batch, ...].

Where examples have different weights, as texts of different lengths do, the value is a `Mean` of sums and
weights, both [batch].
"""

StatefulMeasure = Callable[[PyTree, PyTree, PyTree], Mapping[str, jax.Array | Mean]]
"""`(params, batch, model_state) -> {name: values}`, for a model with a state, which it does not change."""

WeightedBatch = tuple[PyTree, Any]
"""A batch and float32[batch]: 1 for a real example, 0 for padding."""


def evaluating(
    function: Callable[..., T],
    *,
    compute_dtype: ComputeDtype = None,
    params: Callable[[Any], PyTree] = eval_params,
) -> Callable[[Any, PyTree], T]:
    """Return a function of a state and a batch, given one of the parameters and a batch."""
    narrow = narrowing(compute_dtype)

    def evaluated(state: Any, batch: PyTree) -> T:
        states = held_by(state, "model_state")
        hint = "\n  Write output, _ = model.apply(params, ..., model_state=model_state)." if states else ""
        values = {"params": narrow(params(state)), "batch": batch, **states}
        return in_order(function, values, named=held_by(state, "step"), hint=hint)()

    return evaluated


def held_by(state: Any, *names: str) -> dict[str, Any]:
    """Return those of some parts of a state that it has: a user's own state need not have them."""
    return {name: part for name in names if (part := getattr(state, name, None)) is not None}


class Measured:
    """The mean of each of `measure`'s values: `(state, weighted batches) -> scores`. Collective.

    The arguments are those of `Evaluator`.
    """

    def __init__(
        self,
        measure: Measure | StatefulMeasure,
        layout: Layout,
        *,
        compute_dtype: ComputeDtype = None,
        params: Callable[[Any], PyTree] = eval_params,
    ):
        self._measure = evaluating(measure, compute_dtype=compute_dtype, params=params)
        self._mesh, split = layout.mesh, layout.batch_sharding
        score = jax.jit(
            with_rewrites(self._weighted_means, layout),
            in_shardings=(None, split, split),
            out_shardings=layout.replicated,
        )
        self._score = processes.CheckedProgram("the program of an evaluation", score, layout.mesh)

    def __call__(self, state: Any, batches: Iterable[WeightedBatch]) -> Scores:
        """Return the scores over all batches."""
        return mean_over(self._score, state, batches, self._mesh)

    def check(self, state: Any, batch: PyTree, rows: PyTree = None) -> tuple[str, ...]:
        """Trace `measure` with structs of the state and of a batch, and return the names of the scores."""
        weights = jax.ShapeDtypeStruct(jax.tree.leaves(batch)[0].shape[:1], jnp.float32)
        with in_mesh(self._mesh):
            # The evaluation reuses this trace.
            with collector_paused():
                traced = self._score.trace(state, batch, weights)
            if rows is not None:
                check_lookups(traced.jaxpr, state, batch, rows)
            self._score.compare(state, batch, weights)
            return tuple(traced.out_info)

    def _weighted_means(self, state: Any, batch: PyTree, weights: jax.Array) -> dict[str, Mean]:
        return _weighted_means(self._measure(state, batch), weights)


def _weighted_means(values: Mapping[str, jax.Array | Mean], weights: jax.Array) -> dict[str, Mean]:
    if not isinstance(values, Mapping):
        raise UsageError(
            "an evaluation returns values by name, {'loss': values}; this returned "
            f"{'an array' if isinstance(values, jax.Array) else f'a value of type {type(values).__name__}'}."
        )
    return {name: _mean(name, x, weights) for name, x in values.items()}


def _mean(name: str, x: jax.Array | Mean, weights: jax.Array) -> Mean:
    """Return the weighted mean of a value over the examples."""
    if isinstance(x, Mean):
        total, count = (
            _mean_of_array(f"{name}.{part}", getattr(x, part), weights) for part in ("total", "count")
        )
        return Mean(total.total, count.total)
    return _mean_of_array(name, x, weights)


def _mean_of_array(name: str, x: jax.Array, weights: jax.Array) -> Mean:
    if np.shape(x)[:1] != weights.shape:
        raise UsageError(
            f"an evaluation needs a value for each example: {name} has shape {np.shape(x)}, but the batch "
            f"has {weights.shape[0]} examples.\n  Return the values before averaging, [batch, ...]: "
            "Meshwright averages them without the padding. For values with different weights return "
            "mw.Mean(sums, weights), both [batch]."
        )
    return Mean.of(x, jnp.expand_dims(weights, range(1, np.ndim(x))))
