"""The loss over all evaluation examples, each counted once, whatever is left for the last batch."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from meshwright import process
from meshwright.errors import ExamplesError
from meshwright.functions import split
from meshwright.metrics import Mean, merge
from meshwright.sharding import Layout, adding_right
from meshwright.train import (
    RUN_AHEAD,
    ComputeDtype,
    TrainState,
    at_most_ahead,
    eval_params,
    key_of,
    narrowing,
)
from meshwright.tree import PyTree

_EVALUATION = 2**32 - 1  # no step of training has this number


class LossOver:
    """The mean of a loss and those of its metrics over batches, as `numbered_batches` yields them.

    Of the averages of the parameters, if the optimizer keeps any. A scalar weighs as many examples as its
    batch has; a `Mean` weighs what it says. Nothing is left out, and no filler counts. What the loss draws
    depends on the seed, the examples' numbers and how many are computed at a time, which may go by the mesh.

    Args:
      loss: a `Loss` or `StatefulLoss` in evaluation mode.
      compute_dtype: as for `make_step`.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        layout: Layout,
        seed: int,
        compute_dtype: ComputeDtype,
    ):
        self._loss, self._layout = loss, layout
        self._seed, self._narrow = seed, narrowing(compute_dtype)
        # Left open, each device would compute all of a batch that comes as NumPy arrays.
        shardings = (None, layout.batch_sharding, None, None, None)
        means = adding_right(self._means, layout)
        of_rows = jax.jit(means, in_shardings=shardings, out_shardings=layout.replicated)
        self._of_rows = process.Compared("the program of the evaluation's loss", of_rows, layout.mesh)

    def __call__(self, state: TrainState, batches: Iterable[tuple[PyTree, range]]) -> dict[str, float]:
        """Return the scores over all batches.

        Raises:
          ExamplesError: there are none.
        """
        found, wait = [], at_most_ahead(RUN_AHEAD)
        with jax.set_mesh(self._layout.mesh):
            for batch, ids in batches:
                for rows, repeats in self._pieces(batch, len(ids)):
                    number = ids.start if rows is None else ids.start + int(rows[0])
                    found.append(self._of_rows(state, batch, rows, np.float32(repeats), np.uint32(number)))
                    wait(found[-1])
        if not found:
            raise ExamplesError("there are no examples to evaluate on.")
        return merge(jax.device_get(found))

    def _pieces(self, batch: PyTree, num_examples: int) -> Iterable[tuple[np.ndarray | None, int]]:
        if num_examples == _size(batch):
            return [(None, 1)]
        return pieces(num_examples, self._layout.batch_ways)

    def _means(
        self,
        state: TrainState,
        batch: PyTree,
        rows: jax.Array | None,
        repeats: jax.Array,
        number: jax.Array,
    ) -> dict[str, Mean]:
        if rows is not None:
            sharding = self._layout.batch_sharding
            batch = jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x[rows], sharding), batch)
        # A stream of its own: evaluation draws nothing from the one that training draws from.
        key = jax.random.fold_in(jax.random.fold_in(key_of(self._seed), _EVALUATION), number)
        params, has_state = self._narrow(eval_params(state)), state.model_state is not None
        returned = self._loss(params, batch, key, *([state.model_state] if has_state else []))
        value, metrics = split(returned, has_state)
        means = {name: _mean(x, _size(batch)) for name, x in {"loss": value, **metrics}.items()}
        return {name: Mean(mean.total / repeats, mean.count / repeats) for name, mean in means.items()}


def pieces(num_examples: int, ways: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yield pieces of a batch that divide by `ways` and hold each of its first rows equally often.

    Of the few rows at the end that do not divide, so many are taken together as can be repeated to fill one
    piece of `ways` rows. The mean over a piece is then that over its examples; and models may constrain how
    it is split, which they could not if the batch was just cut.

    Yields:
      int64[k], the rows of a piece, and how often each is in it. All pieces have all `num_examples` rows.
    """
    start = num_examples - num_examples % ways
    if start:
        yield np.arange(start), 1
    while start < num_examples:
        count = max(n for n in range(1, num_examples - start + 1) if ways % n == 0)
        yield np.repeat(np.arange(start, start + count), ways // count), ways // count
        start += count


def _size(batch: PyTree) -> int:
    return jax.tree.leaves(batch)[0].shape[0]


def _mean(value: Any, num_rows: int) -> Mean:
    return value if isinstance(value, Mean) else Mean.of(value, num_rows)
