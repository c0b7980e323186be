"""A function's outputs for all examples, in order."""

from collections.abc import Callable
from typing import Any

import jax

from meshwright.base._internal import PyTree
from meshwright.data._internal import Collate, numbered_batches
from meshwright.engine._evaluation._interruption import BeforeBatch, calling_before_each
from meshwright.engine._evaluation._measured import evaluating
from meshwright.engine._predict._run import BatchedPredict, Predictions, check_rows, rows_of
from meshwright.parallel._internal import Layout, in_mesh
from meshwright.training._internal import ComputeDtype, nothing


class ExampleFunction:
    """A function over all examples: `(state, examples) -> predictions`, as `BatchedPredict` yields them.

    Collective.
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
        collate: Collate | None = None,
    ):
        self._evaluate = evaluating(function, compute_dtype=compute_dtype, params=params)
        self._batch_size, self._layout, self._collate = batch_size, layout, collate
        # `BatchedPredict` gets the whole state in place of parameters; `_evaluate` selects the parameters.
        self._over = BatchedPredict(lambda state, _, batch, key: self._evaluate(state, batch), layout, seed)

    def __call__(self, state: Any, examples: Any, before_batch: BeforeBatch = nothing) -> Predictions:
        """Yield the indices of each batch's examples, and their outputs."""
        batches = numbered_batches(
            examples, self._batch_size, self._layout.batch_sharding, collate=self._collate
        )
        return self._over(state, None, calling_before_each(batches, before_batch))

    def of_each(self, state: Any, examples: Any, before_batch: BeforeBatch = nothing) -> list[PyTree]:
        """Return a list of the outputs of each example."""
        return [row for _, outputs in self(state, examples, before_batch) for row in rows_of(outputs)]

    def check(self, state: Any, batch: PyTree) -> PyTree:
        """Return structs of the outputs, given structs of a state and a batch. Compiles nothing."""
        with in_mesh(self._layout.mesh):
            outputs = jax.eval_shape(self._evaluate, state, batch)
        check_rows(outputs, jax.tree.leaves(batch)[0].shape[0])
        self._over.compare(state, None, batch)
        return outputs
