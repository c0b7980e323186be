"""`Evaluator`: evaluation for users who call `mw.fit` themselves."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import jax

from meshwright.base._internal import PyTree
from meshwright.engine._evaluation._batches import Scores
from meshwright.engine._evaluation._measured import Measure, Measured, StatefulMeasure, WeightedBatch
from meshwright.parallel._internal import Layout
from meshwright.processes._internal import Due, Tick, When
from meshwright.training._internal import ComputeDtype, eval_params


class Evaluator:
    """The `evaluate` argument of `mw.fit`: averages the values of `measure` over all examples, when due.

    Args:
      measure: A function `(params, batch) -> {name: values}` with a value for each example. For a model with
        a state it is `(params, batch, model_state) -> {name: values}`.
      data: A function that is called for each evaluation. It returns batches of one shape, each with the
        weights of its examples.
      layout: The mesh, which splits the batches.
      when: The steps at which to evaluate. There is one more evaluation after the last update.
      compute_dtype: The dtype to which wider floating parameters are cast, as in `make_step`.
      params: A function that returns the parameters to evaluate, given the state. By default these are the
        averaged parameters if the optimizer keeps them (`keep_ema`), else the state's own.

    Raises:
      UsageError: `compute_dtype` is not a floating dtype; or, when called, `measure` does not return a value
        for each example.

    Example:
      >>> layout, examples = mw.Layout(mw.make_mesh("data=-1")), {"y": np.arange(10.0)}
      >>> evaluate = mw.engine.Evaluator(
      ...     lambda params, batch: {"error": abs(params["w"] - batch["y"])},
      ...     lambda: mw.data.padded_batches(examples, 8, layout.batch_sharding),
      ...     layout,
      ...     mw.engine.every(100),
      ... )
      >>> state = mw.training.state_from({"w": jnp.zeros(())}, optax.sgd(0.1), 0, layout)
      >>> evaluate(mw.engine.Tick(100), state)
      {'error': 4.5}
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
        """The seconds that all evaluations took, without the training steps that they waited for."""

    def __call__(self, tick: Tick, state: Any) -> Scores | None:
        """Return the scores if an evaluation is due at this tick, else None."""
        if not self._due(tick):
            return None
        jax.block_until_ready(state)
        started = time.perf_counter()
        scores = self._measured(state, self._data())
        self.seconds += time.perf_counter() - started
        return scores

    def check(self, state: Any, batch: PyTree) -> tuple[str, ...]:
        """Trace `measure` with structs of the state and of a batch, and return the names of the scores.

        Raises:
          UsageError: `measure` does not return a value for each example.
        """
        return self._measured.check(state, batch)
