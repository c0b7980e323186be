"""The loss over all evaluation examples. Each example counts once, also in an incomplete last batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType

from meshwright.base._internal import PyTree
from meshwright.engine._evaluation._batches import Scores, mean_over
from meshwright.errors import ExamplesError
from meshwright.observe._internal import Mean
from meshwright.parallel._internal import Layout, meeting, with_rewrites
from meshwright.processes import _internal as processes
from meshwright.program._internal import check_lookups, program_of
from meshwright.training._internal import ComputeDtype, TrainState, eval_params, key_of, narrowing, of_loss

_EVALUATION = 2**32 - 1  # no training step has this number, so no key is drawn twice


class AverageLoss:
    """The means of a loss and of its metrics over batches, as `numbered_batches` yields them. Collective.

    It evaluates the averaged parameters if the optimizer keeps them. A scalar is weighted by the number of
    examples in its batch, a `Mean` by its own count. Every example counts, and padding does not. The random
    numbers of the loss depend on the seed, the batch size and the examples' indices, and not on the mesh.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        layout: Layout,
        seed: int,
        compute_dtype: ComputeDtype,
        params: Callable[[Any], PyTree] = eval_params,
    ):
        self._loss, self._layout = loss, layout
        self._seed, self._narrow, self._params = seed, narrowing(compute_dtype), params
        # Without a sharding here, each device would compute the whole of a batch of NumPy arrays.
        shardings = (None, layout.batch_sharding, None, None, None)
        means = with_rewrites(self._means, layout)
        of_rows = jax.jit(means, in_shardings=shardings, out_shardings=layout.replicated)
        self._of_rows = processes.CheckedProgram("the program of the evaluation's loss", of_rows, layout.mesh)
        self._trace = of_rows.trace
        self._traits: tuple[bool, bool] | None = None
        self._is_checked = False

    def __call__(self, state: TrainState, batches: Iterable[tuple[PyTree, range]]) -> Scores:
        """Return the scores over all batches."""
        scores = mean_over(self._of_rows, state, self._arguments(state, batches), self._layout.mesh)
        if not scores:
            raise ExamplesError("there are no examples to evaluate on.")
        return scores

    def _arguments(
        self, state: TrainState, batches: Iterable[tuple[PyTree, range]]
    ) -> Iterator[tuple[PyTree, np.ndarray | None, np.float32, np.uint32]]:
        """Yield the arguments of each call: for a whole batch, or for a piece of the last one."""
        for batch, ids in batches:
            if not self._is_checked:
                self._is_checked = True
                traced = self._trace(state, batch, None, np.float32(1), np.uint32(0))
                check_lookups(traced.jaxpr, state, batch, batch)
            for rows, repeats in self._pieces(state, batch, len(ids)):
                number = ids.start if rows is None else ids.start + int(rows[0])
                yield batch, rows, np.float32(repeats), np.uint32(number)

    def _pieces(
        self, state: TrainState, batch: PyTree, num_examples: int
    ) -> Iterable[tuple[np.ndarray | None, int]]:
        size = _size(batch)
        if num_examples == size:
            return [(None, 1)]
        is_random, rows_meet = self._traits = self._traits or self._traits_of(state, batch)
        if rows_meet:
            return pieces(num_examples, 1)  # one, which each device computes whole
        # Random numbers depend on the number of rows that are computed together. The batch size does not
        # depend on the mesh, so a random loss takes pieces of that size. `batch_ways` makes smaller pieces,
        # which cost less, but it depends on the mesh.
        return pieces(num_examples, size if is_random else self._layout.batch_ways)

    def _traits_of(self, state: TrainState, batch: PyTree) -> tuple[bool, bool]:
        """Return whether the traced loss or a metric uses the key, and whether rows meet in the loss."""
        traced = self._trace(state, batch, None, np.float32(1), np.uint32(0))
        program, start = program_of(traced.jaxpr), len(jax.tree.leaves(state))
        loss = 2 * sorted(traced.out_info).index("loss")  # each mean has a total and a count
        of_batch = slice(start, start + len(jax.tree.leaves(batch)))
        is_random = any(program.inputs[-1] in operation.inputs for operation in program.operations)
        return is_random, bool(meeting(traced.jaxpr, of_batch, slice(loss, loss + 2)))

    def _means(
        self,
        state: TrainState,
        batch: PyTree,
        rows: jax.Array | None,
        repeats: jax.Array,
        number: jax.Array,
    ) -> dict[str, Mean]:
        if rows is not None:
            is_whole = len(rows) % self._layout.batch_ways
            sharding = self._layout.replicated if is_whole else self._layout.batch_sharding
            # On explicit axes a constraint only asserts what an array's type says.
            explicit = AxisType.Explicit in sharding.mesh.axis_types
            constrain = jax.sharding.reshard if explicit else jax.lax.with_sharding_constraint
            batch = jax.tree.map(lambda x: constrain(x[rows], sharding), batch)
        # Evaluation has a stream of keys of its own, so it does not change what training draws.
        key = jax.random.fold_in(jax.random.fold_in(key_of(self._seed), _EVALUATION), number)
        params, has_state = self._narrow(self._params(state)), state.model_state is not None
        state_arguments = [state.model_state] if has_state else []
        returned = of_loss(self._loss, params, batch, key, *state_arguments, step=state.step)
        value, metrics = _split(returned, has_state)
        means = {name: _mean(x, _size(batch)) for name, x in {"loss": value, **metrics}.items()}
        return {name: Mean(mean.total / repeats, mean.count / repeats) for name, mean in means.items()}


def pieces(num_examples: int, ways: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yield pieces of the first `num_examples` rows of a batch, so that `ways` divides each piece.

    The last rows may not be divisible by `ways`. Some of them are repeated, each equally often, to fill a
    piece of `ways` rows. So the mean over a piece is the mean over its examples, and a model may constrain
    the sharding of a piece. It could not do that if the batch was only cut.

    Yields:
      int64[k], the row indices of a piece, and the number of times that it repeats each row. Together the
      pieces hold every row.
    """
    start = num_examples - num_examples % ways
    if start:
        yield np.arange(start), 1
    while start < num_examples:
        count = max(n for n in range(1, num_examples - start + 1) if ways % n == 0)
        yield np.repeat(np.arange(start, start + count), ways // count), ways // count
        start += count


def _split(returned: Any, has_state: bool) -> tuple[Any, Mapping[str, Any]]:
    """Return the loss and the metrics from the value that a loss function returned."""
    if has_state:
        return returned[0], returned[1]
    return returned if isinstance(returned, tuple) else (returned, {})


def _size(batch: PyTree) -> int:
    return jax.tree.leaves(batch)[0].shape[0]


def _mean(value: Any, num_rows: int) -> Mean:
    return value if isinstance(value, Mean) else Mean.of(value, num_rows)
