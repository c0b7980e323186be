"""One training step: a pure function, compiled once, ahead of the run."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from meshwright import tree
from meshwright.errors import LayoutError, UsageError
from meshwright.metrics import Mean, Packed
from meshwright.sharding import Layout
from meshwright.train._loss import Loss, Metrics, mean_gradients
from meshwright.train._state import TrainState

PyTree = Any
StepFunction = Callable[[TrainState, PyTree], tuple[TrainState, Metrics]]


class Step:
    """A compiled training step: `state, metrics = step(state, batch)`. The state given is donated.

    It is compiled for the first arguments it meets, or by `compile`; arguments of other shapes are
    an error that names them, never a second compilation in the middle of a run.
    """

    def __init__(self, function: StepFunction, layout: Layout, *, microbatches: int = 1):
        self._function, self._layout, self._microbatches = function, layout, microbatches
        self._compiled: jax.stages.Compiled | None = None
        self._batch: PyTree = None
        self.compile_seconds = 0.0
        """How long tracing and compiling took."""

    def __call__(self, state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
        """Return the new state and the metrics, which stay on the devices.

        Raises:
          UsageError: the batch has another structure, shape or dtype than the first.
        """
        if self._compiled is None:
            self.compile(tree.abstract(state), batch)
        try:
            return self._compiled(state, batch)  # type: ignore[misc]
        except TypeError as error:
            raise _changed(self._batch, batch) or error from None

    def compile(self, state: TrainState, batch: PyTree) -> jax.stages.Compiled:
        """Compile for `state` (structs with shardings) and `batch` (arrays or structs of global shape).

        Raises:
          UsageError: the loss is not a scalar, found before anything compiles.
          LayoutError: the batch does not divide over the devices and microbatches.
        """
        started = time.perf_counter()
        batch = self._placed(batch)
        shardings = jax.tree.map(lambda x: x.sharding, state)
        step = jax.jit(self._function, donate_argnums=0, out_shardings=(shardings, self._layout.replicated))
        with jax.set_mesh(self._layout.mesh):  # so that models may constrain by bare PartitionSpecs
            self._compiled = step.lower(state, batch).compile()
        self._batch = batch
        self.compile_seconds += time.perf_counter() - started
        return self._compiled

    def _placed(self, batch: PyTree) -> PyTree:
        ways = self._layout.batch_ways * self._microbatches
        sharding = self._layout.batch_sharding

        def one(name: str, x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            if not x.shape or x.shape[0] % ways:
                raise LayoutError(
                    f"batch leaf {name or 'batch'!r} of shape {x.shape} does not divide: its first dimension "
                    f"must be a multiple of {ways}\n  ({self._layout.batch_ways} ways over mesh "
                    f"{dict(self._layout.mesh.shape)} × {self._microbatches} microbatches). "
                    "Change the batch size, the mesh or microbatches."
                )
            dtype = jax.dtypes.canonicalize_dtype(x.dtype)  # numpy's float64 and int64 become 32 bits wide
            return jax.ShapeDtypeStruct(x.shape, dtype, sharding=sharding)

        return tree.map_named(one, tree.abstract(batch))


def make_step(loss: Loss, tx: optax.GradientTransformation, layout: Layout, *, microbatches: int = 1) -> Step:
    """Return the step that minimises `loss` with the optax transformation `tx`.

    Args:
      loss: `(params, batch, key) -> loss` or `(loss, metrics)`, see `Loss`. Pure.
      microbatches: how many pieces each batch is computed in, one after the other, before the one
        update. For a loss that uses no randomness the number does not change the update.

    Returns:
      A `Step`. Its metrics are the loss's, `loss` itself and `grad_norm`, as `Mean`s on the device.
    """

    def step(state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.key(state.seed), state.step)
        grads, metrics = mean_gradients(loss, state.params, batch, key, microbatches)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        norm = Mean(optax.tree.norm(grads), jnp.ones((), jnp.float32))
        metrics = Packed.of({**metrics, "grad_norm": norm})
        return TrainState(state.step + 1, params, opt_state, state.seed), metrics

    return Step(step, layout, microbatches=microbatches)


def _changed(expected: PyTree, batch: PyTree) -> UsageError | None:
    """Return an error that names what of the batch is not as the step was compiled for, if anything."""
    then, now = tree.named_leaves(expected), tree.named_leaves(tree.abstract(batch))
    changes = [
        f"{name or 'batch'} was {_described(then.get(name))}, is {_described(now.get(name))}"
        for name in then.keys() | now.keys()
        if _described(then.get(name)) != _described(now.get(name))
    ]
    if not changes:
        return None
    return UsageError(
        "the batch changed since the step was compiled: " + "; ".join(sorted(changes)) + ".\n"
        "  Give every batch one shape (pad the last), or make another step for the other shape."
    )


def _described(x: Any) -> str:
    return "missing" if x is None else f"{jax.dtypes.canonicalize_dtype(x.dtype)}{list(x.shape)}"
