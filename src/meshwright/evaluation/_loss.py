"""The loss over all evaluation examples, each counted once, whatever is left for the last batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from meshwright import process
from meshwright.errors import ExamplesError
from meshwright.evaluation._means import Scores, mean_over
from meshwright.metrics import Mean
from meshwright.program import program_of
from meshwright.sharding import Layout, adding_right
from meshwright.train import ComputeDtype, TrainState, eval_params, key_of, narrowing
from meshwright.tree import PyTree

_EVALUATION = 2**32 - 1  # no step of training has this number


class LossOver:
    """The mean of a loss and those of its metrics over batches, as `numbered_batches` yields them.

    Of the averages of the parameters, if the optimizer keeps any. A scalar weighs as many examples as its
    batch has; a `Mean` weighs what it says. Nothing is left out, and no filler counts. What the loss draws
    depends on the seed, the size of the batches and the examples' numbers. It does not depend on the mesh.

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
        self._trace = of_rows.trace
        self._draws: bool | None = None

    def __call__(self, state: TrainState, batches: Iterable[tuple[PyTree, range]]) -> Scores:
        """Return the scores over all batches.

        Raises:
          ExamplesError: there are none.
        """
        scores = mean_over(self._of_rows, state, self._arguments(state, batches), self._layout.mesh)
        if not scores:
            raise ExamplesError("there are no examples to evaluate on.")
        return scores

    def _arguments(
        self, state: TrainState, batches: Iterable[tuple[PyTree, range]]
    ) -> Iterator[tuple[PyTree, np.ndarray | None, np.float32, np.uint32]]:
        """Yield what is computed at a time: a whole batch, or a piece of the last."""
        for batch, ids in batches:
            for rows, repeats in self._pieces(state, batch, len(ids)):
                number = ids.start if rows is None else ids.start + int(rows[0])
                yield batch, rows, np.float32(repeats), np.uint32(number)

    def _pieces(
        self, state: TrainState, batch: PyTree, num_examples: int
    ) -> Iterable[tuple[np.ndarray | None, int]]:
        size = _size(batch)
        if num_examples == size:
            return [(None, 1)]
        # What is drawn depends on how many examples are computed at a time. How large a batch is does not
        # depend on the mesh. How many ways it is split does, and makes smaller pieces.
        return pieces(num_examples, size if self._is_random(state, batch) else self._layout.batch_ways)

    def _is_random(self, state: TrainState, batch: PyTree) -> bool:
        """Return whether the loss or a metric depends on the key, as its program says."""
        if self._draws is None:
            program = program_of(self._trace(state, batch, None, np.float32(1), np.uint32(0)).jaxpr)
            number = program.inputs[-1]
            self._draws = any(number in operation.inputs for operation in program.operations)
        return self._draws

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
        value, metrics = _split(returned, has_state)
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


def _split(returned: Any, has_state: bool) -> tuple[Any, Mapping[str, Any]]:
    """Return the loss and the metrics of what a loss returned."""
    if has_state:
        return returned[0], returned[1]
    return returned if isinstance(returned, tuple) else (returned, {})


def _size(batch: PyTree) -> int:
    return jax.tree.leaves(batch)[0].shape[0]


def _mean(value: Any, num_rows: int) -> Mean:
    return value if isinstance(value, Mean) else Mean.of(value, num_rows)
