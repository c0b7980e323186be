"""Scores of each example, averaged: every example counts once, none is left out, none counts twice."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from meshwright import process
from meshwright.collector import collector_paused
from meshwright.errors import UsageError
from meshwright.evaluation._means import Scores, mean_over
from meshwright.metrics import Mean
from meshwright.sharding import Layout, adding_right
from meshwright.train import ComputeDtype, eval_params, narrowing
from meshwright.tree import PyTree

T = TypeVar("T")

Measure = Callable[[PyTree, PyTree], Mapping[str, jax.Array | Mean]]
"""`(params, batch) -> {name: values}` with a value, or an array of them, for each example: [batch, ...].
Where examples weigh differently, as padded texts do by their tokens, a `Mean` of sums and weights, both
[batch]."""

StatefulMeasure = Callable[[PyTree, PyTree, PyTree], Mapping[str, jax.Array | Mean]]
"""`(params, batch, model_state) -> {name: values}`, of a model that has a state, which it does not change."""

WeightedBatch = tuple[PyTree, Any]
"""A batch and float32[batch]: 1 for an example that counts, 0 for one that only fills the batch."""


def evaluating(
    function: Callable[..., T],
    *,
    compute_dtype: ComputeDtype = None,
    params: Callable[[Any], PyTree] = eval_params,
) -> Callable[[Any, PyTree], T]:
    """Return `function(params, batch)`, or `(params, batch, model_state)`, as one of a state and a batch.

    Args: as of `Evaluator`.

    Raises:
      UsageError: `compute_dtype` is not a floating dtype.
    """
    narrow = narrowing(compute_dtype)

    def evaluated(state: Any, batch: PyTree) -> T:
        model_state = getattr(state, "model_state", None)  # which users' own states need not have
        return function(narrow(params(state)), batch, *(() if model_state is None else (model_state,)))

    return evaluated


class Measured:
    """The mean of each of `measure`'s values: `(state, weighted batches) -> scores`. Collective.

    Args: as of `Evaluator`.

    Raises:
      UsageError: `compute_dtype` is not a floating dtype; or, when called, `measure` returns something that
        has no value for each example.
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
            adding_right(self._weighed, layout),
            in_shardings=(None, split, split),
            out_shardings=layout.replicated,
        )
        self._score = process.Compared("the program of an evaluation", score, layout.mesh)

    def __call__(self, state: Any, batches: Iterable[WeightedBatch]) -> Scores:
        """Return the scores over all batches."""
        return mean_over(self._score, state, batches, self._mesh)

    def check(self, state: Any, batch: PyTree) -> tuple[str, ...]:
        """Return the names of the scores, having tried `measure` on structs of the state and of one batch.

        Raises:
          UsageError: it returns something that has no value for each example.
        """
        weights = jax.ShapeDtypeStruct(jax.tree.leaves(batch)[0].shape[:1], jnp.float32)
        with jax.set_mesh(self._mesh):
            # So that the evaluation need not trace it again.
            with collector_paused():
                names = tuple(self._score.eval_shape(state, batch, weights))
            self._score.compare(state, batch, weights)
            return names

    def _weighed(self, state: Any, batch: PyTree, weights: jax.Array) -> dict[str, Mean]:
        return _weighed(self._measure(state, batch), weights)


def _weighed(values: Mapping[str, jax.Array | Mean], weights: jax.Array) -> dict[str, Mean]:
    if not isinstance(values, Mapping):
        raise UsageError(
            "an evaluation returns values by name, {'loss': values}; this returned "
            f"{'an array' if isinstance(values, jax.Array) else f'a {type(values).__name__}'}."
        )
    return {name: _mean(name, x, weights) for name, x in values.items()}


def _mean(name: str, x: jax.Array | Mean, weights: jax.Array) -> Mean:
    """Return the mean of one value over the examples that count."""
    if isinstance(x, Mean):
        total, count = (_each(f"{name}.{part}", getattr(x, part), weights) for part in ("total", "count"))
        return Mean(total.total, count.total)
    return _each(name, x, weights)


def _each(name: str, x: jax.Array, weights: jax.Array) -> Mean:
    if np.shape(x)[:1] != weights.shape:
        raise UsageError(
            f"an evaluation needs a value for each example: {name} has shape {np.shape(x)}, the batch "
            f"{weights.shape[0]} examples.\n  Return the values before averaging, [batch, ...]; "
            "which of them count is decided here. Values that weigh differently: "
            "mw.Mean(sums, weights), both [batch]."
        )
    return Mean.of(x, jnp.expand_dims(weights, range(1, np.ndim(x))))
