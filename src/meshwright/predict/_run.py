"""From batches to one prediction for each example, in order, on every process."""

from collections import deque
from collections.abc import Callable, Iterator

import jax
import numpy as np

from meshwright import tree
from meshwright.errors import UsageError
from meshwright.sharding import Layout
from meshwright.tree import PyTree

RUN_AHEAD = 4  # batches in flight, so that reading, computing and fetching overlap

Predict = Callable[[PyTree, PyTree, PyTree, jax.Array], PyTree]
"""`(params, model_state, batch, key) -> predictions`: a tree of arrays with a row for each example."""


def predictions(
    predict: Predict,
    layout: Layout,
    params: PyTree,
    model_state: PyTree,
    batches: Iterator[tuple[PyTree, range]],
    key: jax.Array,
) -> Iterator[tuple[range, PyTree]]:
    """Yield the numbers of the examples of a batch, and their predictions as NumPy arrays.

    What was computed of fillers is cut away. Batch i draws from `fold_in(key, first number)`.

    Args:
      batches: as `numbered_batches` yields them.

    Raises:
      UsageError: a prediction has no row for each example.
    """
    compute = jax.jit(predict, out_shardings=layout.replicated)
    in_flight: deque[tuple[range, PyTree]] = deque()
    with jax.set_mesh(layout.mesh):
        for batch, ids in batches:
            out = compute(params, model_state, batch, jax.random.fold_in(key, ids.start))
            _check_rows(out, jax.tree.leaves(batch)[0].shape[0])
            in_flight.append((ids, out))
            if len(in_flight) > RUN_AHEAD:
                yield _fetched(*in_flight.popleft())
    for ids, out in in_flight:
        yield _fetched(ids, out)


def _fetched(ids: range, out: PyTree) -> tuple[range, PyTree]:
    return ids, jax.tree.map(lambda x: np.asarray(x)[: len(ids)], out)


def _check_rows(out: PyTree, size: int) -> None:
    for name, x in tree.named_leaves(out).items():
        if x.shape[:1] != (size,):
            raise UsageError(
                f"a prediction needs a row for each example: {name or 'it'} has shape {x.shape}, the batch "
                f"{size} examples.\n  Return arrays whose first dimension is the batch's."
            )
