"""The outputs of a model's function for all examples, in order."""

from collections.abc import Callable
from typing import Any

import jax

from meshwright.evaluation._look import Look, looking
from meshwright.evaluation._measured import evaluating
from meshwright.input import numbered_batches
from meshwright.predict import OverBatches, Predictions, check_rows, rows_of
from meshwright.sharding import Layout
from meshwright.train import ComputeDtype, nothing
from meshwright.tree import PyTree


class RowsOver:
    """A function over all examples: `(state, examples) -> predictions`, as `OverBatches` yields them.

    Collective.

    Args:
      function: `(params, batch)`, or `(params, batch, model_state)`, to arrays with a row for each example.
      batch_size: Examples at a time, over all devices.
      compute_dtype, params: As of `Evaluator`.
    """

    def __init__(
        self,
        function: Callable[..., PyTree],
        batch_size: int,
        layout: Layout,
        seed: int,
        *,
        compute_dtype: ComputeDtype,
        params: Callable[[Any], PyTree],
    ):
        self._of = evaluating(function, compute_dtype=compute_dtype, params=params)
        self._batch_size, self._layout = batch_size, layout
        # The whole state goes where parameters would: `_of` picks what it evaluates.
        self._over = OverBatches(lambda state, _, batch, key: self._of(state, batch), layout, seed)

    def __call__(self, state: Any, examples: Any, look: Look = nothing) -> Predictions:
        """Yield the numbers of the examples of each batch, and what is computed of them."""
        batches = numbered_batches(examples, self._batch_size, self._layout.batch_sharding)
        return self._over(state, None, looking(batches, look))

    def of_each(self, state: Any, examples: Any, look: Look = nothing) -> list[PyTree]:
        """Return what is computed of each example."""
        return [row for _, found in self(state, examples, look) for row in rows_of(found)]

    def check(self, state: Any, batch: PyTree) -> PyTree:
        """Return structs of what the function returns for structs of a state and a batch, without compiling.

        Raises:
          UsageError: It does not return arrays with a row for each example.
        """
        with jax.set_mesh(self._layout.mesh):
            found = jax.eval_shape(self._of, state, batch)
        check_rows(found, jax.tree.leaves(batch)[0].shape[0])
        self._over.compare(state, None, batch)
        return found
