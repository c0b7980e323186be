"""Predictions for all examples, in order, on every process: a compiled function, called batch by batch."""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from meshwright.base._internal import PyTree, tree
from meshwright.errors import LayoutError, UsageError
from meshwright.parallel._internal import Layout, check_axes, in_mesh, with_rewrites
from meshwright.processes import _internal as processes
from meshwright.training._internal import RUN_AHEAD, key_of

Predict = Callable[[PyTree, PyTree, PyTree, jax.Array], PyTree]
"""`(params, model_state, batch, key) -> predictions`: a tree of arrays with a row for each example."""

Batches = Iterator[tuple[PyTree, range]]
"""Global batches with the indices of their examples, as `numbered_batches` yields them."""

Predictions = Iterator[tuple[range, PyTree]]
"""The indices of the examples of each batch, and their predictions as NumPy arrays."""

_PREDICTION = 2**32 - 2  # no training step has this number, so no key is drawn twice


class BatchedPredict:
    """`predict` as a function of all batches: `(params, model_state, batches) -> predictions`. Collective.

    It compiles once for each shape of a batch, however often it is called. Each device computes its share of
    a batch, and every process gets the whole prediction. Rows of padding are cut off.
    """

    def __init__(
        self,
        predict: Predict,
        layout: Layout,
        seed: int,
        idle: Callable[[LayoutError], None] = lambda error: None,
    ):
        def prediction_of(
            params: PyTree, model_state: PyTree, batch: PyTree, number: Any, seed: Any
        ) -> PyTree:
            key = jax.random.fold_in(jax.random.fold_in(key_of(seed), _PREDICTION), number)
            num_examples = jax.tree.leaves(batch)[0].shape[0]  # counted first: `predict` may remove arrays
            prediction = predict(params, model_state, batch, key)
            check_rows(prediction, num_examples)
            return prediction

        compute = jax.jit(
            with_rewrites(prediction_of, layout),
            # Without a sharding here, each device would compute the whole of a batch of NumPy arrays.
            in_shardings=(None, None, layout.batch_sharding, None, None),
            out_shardings=layout.replicated,
        )
        self._compute = processes.CheckedProgram("the program of the predictions", compute, layout.mesh)
        self._layout, self._seed, self._trace, self._idle = layout, seed, compute.trace, idle

    def __call__(
        self, params: PyTree, model_state: PyTree, batches: Batches, seed: int | None = None
    ) -> Predictions:
        """Yield the predictions of each batch."""
        in_flight: deque[tuple[range, PyTree]] = deque()
        seed = self._seed if seed is None else seed
        for number, (batch, ids) in enumerate(batches):
            arguments = params, model_state, batch, np.uint32(ids.start % 2**32), np.uint32(seed)
            with in_mesh(self._layout.mesh):  # so that models may constrain by bare PartitionSpecs
                if number == 0:
                    check_axes(self._layout, arguments[:2], partial(self._trace, *arguments), self._idle)
                out = self._compute(*arguments)
            in_flight.append((ids, out))
            if len(in_flight) > RUN_AHEAD:
                yield _fetched(*in_flight.popleft())
        while in_flight:
            yield _fetched(*in_flight.popleft())

    def compare(self, params: PyTree, model_state: PyTree, batch: PyTree) -> None:
        """Check that all processes have the same program for these arguments, arrays or structs.
        Collective.
        """
        with in_mesh(self._layout.mesh):
            self._compute.compare(params, model_state, batch, np.uint32(0), np.uint32(0))


def _fetched(ids: range, out: PyTree) -> tuple[range, PyTree]:
    return ids, jax.tree.map(lambda x: x[: len(ids)], jax.device_get(out))


def check_rows(prediction: PyTree, num_examples: int) -> None:
    """Check that every array of `prediction`, or every struct, has `num_examples` rows."""
    shapes = {name: np.shape(x) for name, x in tree.named_leaves(prediction).items()}
    problems = [
        f"{name or 'the returned array'} has shape {shape}"
        for name, shape in shapes.items()
        if shape[:1] != (num_examples,)
    ]
    if problems or not shapes:
        raise UsageError(
            f"a prediction needs a row for each of the {num_examples} examples of a batch: "
            f"{', '.join(problems) or 'it has no arrays'}.\n"
            "  Return arrays whose first dimension is the batch's."
        )


def rows_of(prediction: PyTree) -> list[PyTree]:
    """Return the predictions as a list with one tree for each example."""
    leaves, structure = jax.tree.flatten(prediction)
    return [structure.unflatten(row) for row in zip(*leaves, strict=True)]
