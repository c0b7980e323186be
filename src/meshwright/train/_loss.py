"""The gradient of a loss over a batch, in one piece or in microbatches, weighed exactly."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.errors import UsageError
from meshwright.metrics import Mean

PyTree = Any
Metrics = Mapping[str, Mean]
REPORTED = ("step", "time")
"""What a report holds besides metrics."""
RESERVED = ("loss", "grad_norm", *REPORTED)
"""What a report holds besides the loss's own metrics."""

Loss = Callable[[PyTree, PyTree, jax.Array], Any]
"""`(params, batch, key) -> loss` or `(loss, metrics)`.

The loss is a scalar, the mean over the batch, or a `Mean(total, count)`, whose parts are added over
microbatches before they are divided, so that padding and masks weigh what they should. Metrics are
`{name: Mean or scalar}`.
"""


def total_loss(loss: Loss, params: PyTree, batch: PyTree, key: jax.Array) -> tuple[jax.Array, Metrics]:
    """Return the loss's total and all metrics as `Mean`s, the loss among them.

    Raises:
      UsageError: the loss is not a scalar or a `Mean` of scalars.
    """
    value, metrics = _split(loss(params, batch, key))
    _check_names(metrics)
    mean = as_mean("loss", value)
    return jnp.asarray(mean.total), {"loss": mean} | {
        name: as_mean(name, metric) for name, metric in metrics.items()
    }


def mean_gradients(
    loss: Loss, params: PyTree, batch: PyTree, key: jax.Array, microbatches: int
) -> tuple[PyTree, Metrics]:
    """Return the gradients of the loss over the whole batch, in the parameters' dtypes, and the metrics.

    With several microbatches one after the other is computed, so that the memory of one is enough;
    totals, counts and gradients are added in at least float32 and divided once, at the end.
    """
    differentiate = jax.grad(lambda p, b, k: total_loss(loss, p, b, k), has_aux=True)
    if microbatches == 1:
        grads, metrics = differentiate(params, batch, jax.random.fold_in(key, 0))
    else:
        grads, metrics = _accumulated(differentiate, params, batch, key, microbatches)
    count = jnp.asarray(metrics["loss"].count)
    scale = jnp.where(count > 0, 1 / jnp.where(count > 0, count, 1), 0)
    return jax.tree.map(lambda g, p: (g * scale).astype(p.dtype), grads, params), metrics


def _accumulated(
    differentiate: Callable[..., tuple[PyTree, Metrics]],
    params: PyTree,
    batch: PyTree,
    key: jax.Array,
    microbatches: int,
) -> tuple[PyTree, Metrics]:
    pieces = jax.tree.map(lambda x: _striped(x, microbatches), batch)

    def one(i: jax.Array | int, piece: PyTree) -> tuple[PyTree, Metrics]:
        return jax.tree.map(_widened, differentiate(params, piece, jax.random.fold_in(key, i)))

    def add(total: PyTree, numbered: tuple[jax.Array, PyTree]) -> tuple[PyTree, None]:
        return jax.tree.map(jnp.add, total, one(*numbered)), None

    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(one, 0, jax.tree.map(lambda x: x[0], pieces))
    )
    return jax.lax.scan(add, zeros, (jnp.arange(microbatches), pieces))[0]


def _striped(x: jax.Array, n: int) -> jax.Array:
    """[n * B, ...] -> [n, B, ...], striped, so that every piece stays split over all devices."""
    return x.reshape(x.shape[0] // n, n, *x.shape[1:]).swapaxes(0, 1)


def _widened(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _split(returned: Any) -> tuple[Any, Mapping[str, Any]]:
    value, metrics = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
    if not isinstance(metrics, Mapping):
        raise UsageError(
            f"the loss returned (loss, {type(metrics).__name__}); the second part must be a dictionary of "
            "metrics.\n  Return the loss alone, or (loss, {'name': scalar or Mean})."
        )
    return value, metrics


def _check_names(metrics: Mapping[str, Any]) -> None:
    taken = [name for name in metrics if name in RESERVED]
    if taken:
        raise UsageError(
            f"the loss returned a metric called {taken[0]!r}, which a report has already.\n"
            f"  Give it another name than {', '.join(RESERVED)}."
        )


def as_mean(name: str, value: Any) -> Mean:
    """Return a scalar as a `Mean` that weighs 1, and a `Mean` as it is.

    Raises:
      UsageError: it is neither.
    """
    remedy = "Return losses.mean(), or mw.Mean.of(losses, weights) to weigh examples or tokens."
    if not isinstance(value, Mean | jax.Array | np.ndarray | np.generic | float | int):
        found = "None: does it end without `return`?" if value is None else f"a {type(value).__name__}."
        raise UsageError(f"{name} must be a scalar or a Mean of scalars; it is {found}\n  {remedy}")
    mean = value if isinstance(value, Mean) else Mean(jnp.asarray(value), jnp.ones((), jnp.float32))
    if jnp.shape(mean.total) or jnp.shape(mean.count):
        raise UsageError(
            f"{name} must be a scalar or a Mean of scalars; it has shape {jnp.shape(mean.total)}.\n  {remedy}"
        )
    return mean
