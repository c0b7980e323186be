"""`Evaluator`: the `evaluate` of a loop of one's own."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import jax

from meshwright.evaluation._means import Scores
from meshwright.evaluation._measured import Measure, Measured, StatefulMeasure, WeightedBatch
from meshwright.sharding import Layout
from meshwright.train import ComputeDtype, eval_params
from meshwright.tree import PyTree
from meshwright.when import Due, Tick, When


class Evaluator:
    """The loop's `evaluate`: when due, the mean of each of `measure`'s values over all of `data`.

    Args:
      measure: `(params, batch) -> {name: values}`, with a value for each example. Of a model with a state
        `(params, batch, model_state) -> {name: values}`.
      data: called for each evaluation; yields batches of one shape and the weights of their examples.
      when: due at these steps, and after the last update.
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
        self._measured = Measured(measure, layout, compute_dtype=compute_dtype, params=params)
        self._data, self._due = data, Due(when)
        self.seconds = 0.0
        """Seconds that all evaluations took, not counting the training steps that they waited for."""

    def __call__(self, tick: Tick, state: Any) -> Scores | None:
        """Return the scores if they are due, else None."""
        if not self._due(tick):
            return None
        jax.block_until_ready(state)
        started = time.perf_counter()
        scores = self._measured(state, self._data())
        self.seconds += time.perf_counter() - started
        return scores

    def check(self, state: Any, batch: PyTree) -> tuple[str, ...]:
        """Return the names of the scores, having tried `measure` on structs of the state and of one batch.

        Raises:
          UsageError: it returns something that has no value for each example.
        """
        return self._measured.check(state, batch)
