"""The loss over all evaluation examples, each counted once, whatever is left for the last batch."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax

from meshwright.errors import ExamplesError
from meshwright.functions import split
from meshwright.metrics import Mean, merge
from meshwright.sharding import Layout
from meshwright.train import RUN_AHEAD, TrainState, at_most_ahead, narrowed
from meshwright.tree import PyTree

_EVALUATION = 2**32 - 1  # no step of training has this number


class LossOver:
    """The measure of a loss: its mean and those of its metrics over `batches()`.

    A scalar weighs as many examples as its batch has; a `Mean` weighs what it says. The last batch is cut
    down to its real examples before the loss sees it: nothing is left out and no filler counts.

    Args:
      loss: a `Loss` or `StatefulLoss` in evaluation mode.
      batches: returns an iterator as `numbered_batches` does.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        layout: Layout,
        batches: Callable[[], Iterator[tuple[PyTree, range]]],
        seed: int,
        compute_dtype: Any,
    ):
        self._loss, self._mesh, self._batches = loss, layout.mesh, batches
        self._seed, self._dtype = seed, compute_dtype
        self._of_batch = jax.jit(
            self._means,
            static_argnums=3,
            # Left open, each device would compute all of a batch that comes as NumPy arrays.
            in_shardings=(None, None, layout.batch_sharding),
            out_shardings=layout.replicated,
        )

    def __call__(self, state: TrainState) -> dict[str, float]:
        found, wait = [], at_most_ahead(RUN_AHEAD)
        with jax.set_mesh(self._mesh):
            for batch, ids in self._batches():
                found.append(self._of_batch(state.params, state.model_state, batch, len(ids)))
                wait(found[-1])
        return merge(jax.device_get(found))

    def names(self, state: TrainState) -> Sequence[str]:
        """Try the loss without compiling, and return the names of the scores.

        Raises:
          ExamplesError: there are no examples.
        """
        first, ids = next(self._batches(), (None, range(0)))
        if not ids:
            raise ExamplesError("there are no examples to evaluate on.")
        with jax.set_mesh(self._mesh):
            traced = partial(self._means, num_examples=len(ids))
            return list(jax.eval_shape(traced, state.params, state.model_state, first))

    def _means(
        self, params: PyTree, model_state: PyTree, batch: PyTree, num_examples: int
    ) -> dict[str, Mean]:
        batch = jax.tree.map(lambda x: x[:num_examples], batch)
        # A stream of its own: evaluation draws nothing from the one that training draws from.
        key = jax.random.fold_in(jax.random.key(self._seed), _EVALUATION)
        state = () if model_state is None else (model_state,)
        returned = self._loss(narrowed(params, self._dtype), batch, key, *state)
        value, metrics = split(returned, model_state is not None)
        return {name: _mean(x, num_examples) for name, x in {"loss": value, **metrics}.items()}


def _mean(value: Any, num_examples: int) -> Mean:
    return value if isinstance(value, Mean) else Mean(value * num_examples, num_examples)
