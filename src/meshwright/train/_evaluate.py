"""Scores over a whole set of examples: every one counted once, none left out, none twice."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from meshwright import process
from meshwright.collector import collector_paused
from meshwright.errors import UsageError
from meshwright.metrics import Mean, merge
from meshwright.sharding import Layout, adding_right
from meshwright.train._ema import eval_params
from meshwright.train._loop import RUN_AHEAD, at_most_ahead
from meshwright.train._precision import ComputeDtype, narrowing
from meshwright.tree import PyTree
from meshwright.when import Due, Tick, When

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


class Evaluator:
    """The loop's `evaluate`: when due, the mean of each of `measure`'s values over all of `data`.

    Args:
      measure: `(params, batch) -> {name: values}`, with values [batch] or [batch, ...]. For a model with a
        state it is `(params, batch, model_state) -> {name: values}`.
      data: is called for each evaluation, and yields batches of one shape with the weights of their examples,
        float32[batch].
      layout: where batches are split.
      when: says after which steps to evaluate, besides the last.
      compute_dtype: floating parameters that are wider are cast to it, and nothing else, as in `make_step`.
      params: which parameters to measure, of the state that the loop gives; without it their averages, if
        the optimizer keeps any (`keep_ema`).

    Raises:
      UsageError: `compute_dtype` is not a floating dtype; or, when called, `measure` returns something that
        has no value for each example.
    """

    def __init__(
        self,
        measure: Measure | StatefulMeasure,
        data: Callable[[], Iterable[WeightedBatch]],
        layout: Layout,
        when: When,
        *,
        compute_dtype: ComputeDtype = None,
        params: Callable[[Any], PyTree] = eval_params,
    ):
        self._measure = evaluating(measure, compute_dtype=compute_dtype, params=params)
        self._data, self._mesh, self._due = data, layout.mesh, Due(when)
        split = layout.batch_sharding
        score = jax.jit(
            adding_right(self._weighed, layout),
            in_shardings=(None, split, split),
            out_shardings=layout.replicated,
        )
        self._score = process.Compared("the program of an evaluation", score, layout.mesh)
        self.seconds = 0.0
        """How long all evaluations took, not counting the training steps that they waited for."""

    def __call__(self, tick: Tick, state: Any) -> dict[str, float] | None:
        """Return the scores if they are due, else None."""
        if not self._due(tick):
            return None
        jax.block_until_ready(state)
        started = time.perf_counter()
        scores = self._scores(state)
        self.seconds += time.perf_counter() - started
        return scores

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

    def _scores(self, state: Any) -> dict[str, float]:
        parts, wait = [], at_most_ahead(RUN_AHEAD)
        with jax.set_mesh(self._mesh):
            for batch, weights in self._data():
                parts.append(self._score(state, batch, weights))
                wait(parts[-1])
        return merge(jax.device_get(parts))

    def _weighed(self, state: Any, batch: PyTree, weights: jax.Array) -> dict[str, Mean]:
        return _weighed(self._measure(state, batch), weights)


def _weighed(values: Mapping[str, jax.Array | Mean], weights: jax.Array) -> dict[str, Mean]:
    if not isinstance(values, Mapping):
        raise UsageError(
            "an evaluation returns values by name, {'loss': values}; this returned a "
            f"{type(values).__name__}."
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
