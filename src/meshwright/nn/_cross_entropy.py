"""The public functions for the cross entropy of a head's logits. They check the arguments."""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from meshwright.errors import UsageError, did_you_mean
from meshwright.nn._chunks import Static, losses_of, total_of
from meshwright.observe._internal import Mean

_GATHERS = ("once", "per chunk")


def cross_entropy(
    hidden: jax.Array,
    head: jax.Array,
    labels: jax.Array,
    *,
    label_weights: jax.Array | None = None,
    softcap: float | None = None,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    chunk: int = 256,
    gather: Literal["once", "per chunk"] = "once",
) -> Mean:
    """Return the mean cross entropy of labels under the logits `hidden @ head`.

    It holds the logits of one chunk of positions at a time, in float32, and never all of them. It computes
    the gradient together with the loss, chunk by chunk, so no logits are computed twice. On a mesh with the
    axis `tensor` each device holds its part of the vocabulary, and the devices exchange maxima and sums
    instead of logits.

    Args:
      hidden: [B, ..., D], the features before the head, split by example over the mesh.
      head: [D, V], the weights of the head. For tied embeddings it is `embedding.T`.
      labels: Int[B, ...], each less than V. A label whose weight is 0 may be any number.
      label_weights: The weights of the labels, which broadcast to [B, ...]. None weights all labels 1.
      softcap: If given, each logit x becomes softcap × tanh(x / softcap).
      z_loss: The factor of the z-loss, the square of the logits' log-sum-exp, which is added to the loss and
        keeps logits small (Chowdhery et al., arXiv:2204.02311).
      label_smoothing: The part of each label's probability that is spread evenly over the vocabulary.
      chunk: The largest number of positions of each row whose logits are held at once.
      gather: Under `fsdp`, "once" gathers the head once, holds it with its float32 gradient, and sums the
        gradient over the devices once. "per chunk" does both for each chunk and holds only parts. It needs
        less memory, and exchanges that many times more bytes as there are chunks.

    Returns:
      The weighted mean over all labels, as a `Mean`, which a loss may return.

    Raises:
      UsageError: Shapes, dtypes or numbers do not fit together.

    Example:
      >>> hidden, head = jnp.ones((2, 8, 4)), jnp.zeros((4, 10))
      >>> mw.nn.cross_entropy(hidden, head, jnp.zeros((2, 8), int), label_weights=jnp.arange(8) < 6)
      Mean(2.30259, count=12)
    """
    static = _checked(hidden, head, labels, softcap, z_loss, label_smoothing, chunk, gather)
    dtype = static.dtype
    weights = jnp.asarray(1 if label_weights is None else label_weights, dtype)
    try:
        weights = jnp.broadcast_to(weights, labels.shape)
    except ValueError:
        message = f"label_weights {weights.shape} do not broadcast to labels {labels.shape}."
        raise UsageError(message) from None
    rows = (hidden.shape[0], -1)
    total = total_of(
        static, hidden.reshape(*rows, hidden.shape[-1]), head, labels.reshape(rows), weights.reshape(rows)
    )
    return Mean(total, weights.sum())


def token_losses(
    hidden: jax.Array,
    head: jax.Array,
    labels: jax.Array,
    *,
    softcap: float | None = None,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    chunk: int = 256,
    gather: Literal["once", "per chunk"] = "once",
) -> jax.Array:
    """Return the cross entropy of each label, float32[B, ...], of which `cross_entropy` is the mean.

    Its gradient computes the logits a second time, because the weights of the losses are not known before.

    The arguments and errors are those of `cross_entropy`.

    Example:
      >>> mw.nn._internal.token_losses(jnp.ones((2, 3, 4)), jnp.zeros((4, 10)), jnp.zeros((2, 3), int)).shape
      (2, 3)
    """
    static = _checked(hidden, head, labels, softcap, z_loss, label_smoothing, chunk, gather)
    rows = (hidden.shape[0], -1)
    found = losses_of(static, hidden.reshape(*rows, hidden.shape[-1]), head, labels.reshape(rows))
    return found.reshape(labels.shape)


def _checked(
    hidden: jax.Array,
    head: jax.Array,
    labels: jax.Array,
    softcap: float | None,
    z_loss: float,
    label_smoothing: float,
    chunk: int,
    gather: Any,
) -> Static:
    shapes = f"hidden {hidden.shape}, head {head.shape}, labels {labels.shape}"
    if hidden.ndim < 2 or head.ndim != 2 or hidden.shape[-1] != head.shape[0]:
        raise UsageError(f"the loss takes hidden [B, ..., D] and head [D, V]: found {shapes}.")
    if labels.shape != hidden.shape[:-1] or not jnp.issubdtype(labels.dtype, jnp.integer):
        raise UsageError(f"labels are int[B, ...], one for each position: found {shapes}, {labels.dtype}.")
    if softcap is not None and not softcap > 0:
        raise UsageError(f"softcap={softcap}: expected a number above 0.")
    if not 0 <= label_smoothing < 1:
        raise UsageError(f"label_smoothing={label_smoothing}: expected at least 0 and less than 1.")
    if not (isinstance(chunk, int) and chunk > 0):
        raise UsageError(f"chunk={chunk!r}: expected a number of positions, at least 1.")
    if gather not in _GATHERS:
        hint = did_you_mean(str(gather), _GATHERS)
        raise UsageError(
            f"gather={gather!r} is not known.{hint}\n  There are {', '.join(map(repr, _GATHERS))}."
        )
    dtype = jnp.promote_types(jnp.promote_types(hidden.dtype, head.dtype), jnp.float32)
    return Static(softcap, float(z_loss), float(label_smoothing), chunk, gather == "once", dtype)
