"""Cross entropy of a head's logits, chunk by chunk, with its own gradient.

Under `fsdp` the head is gathered before the loop over chunks. Devices that hold the same rows are a group.
Each group sums the head's gradient over its own rows. The sums of the groups are added once, after the loop.
XLA has no array type whose value is the sum over devices, so the gradient in the loop has one more dimension,
the group, which is split over the mesh.

Shapes: B rows, T positions, D features, V vocabulary; n chunks; g groups of devices, each of which has r
labels of a chunk.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from meshwright.errors import UsageError, did_you_mean
from meshwright.observe._internal import Mean
from meshwright.parallel._internal import axes_splitting, feature_axes, position_axes, sequence_ways

_GATHERS = ("once", "per chunk")


@dataclass(frozen=True)
class _Static:
    """The settings of the loss that are fixed when it is compiled."""

    softcap: float | None
    z_loss: float
    smoothing: float
    chunk: int
    """The largest number of positions in a chunk."""
    gathers_once: bool
    dtype: Any
    """The dtype of logits and sums."""


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
    total = _total_of(
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
    losses = _losses_of(static, hidden.reshape(*rows, hidden.shape[-1]), head, labels.reshape(rows))
    return losses.reshape(labels.shape)


def _checked(
    hidden: jax.Array,
    head: jax.Array,
    labels: jax.Array,
    softcap: float | None,
    z_loss: float,
    label_smoothing: float,
    chunk: int,
    gather: Any,
) -> _Static:
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
    return _Static(softcap, float(z_loss), float(label_smoothing), chunk, gather == "once", dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _total_of(
    static: _Static, hidden: jax.Array, head: jax.Array, labels: jax.Array, weights: jax.Array
) -> jax.Array:
    """Return the weighted sum of the losses."""
    return _weighted_sum(_losses_of(static, hidden, head, labels), weights)


def _total_forward(static: _Static, hidden: Any, head: Any, labels: Any, weights: Any) -> tuple[Any, Any]:
    losses, d_hidden, d_head = _gradients(static, _products, hidden, head, labels, weights)
    # The derivative by the weights, as in `Mean.of`.
    counted = jnp.where(weights == 0, 0, losses)
    return _weighted_sum(losses, weights), (counted, d_hidden, d_head, jnp.zeros((0,), head.dtype))


def _total_backward(static: _Static, residuals: Any, change: jax.Array) -> tuple[Any, ...]:
    counted, d_hidden, d_head, like = residuals
    d_hidden = (d_hidden * change).astype(d_hidden.dtype)
    return d_hidden, (d_head * change).astype(like.dtype), None, counted * change


_total_of.defvjp(_total_forward, _total_backward)


def _weighted_sum(losses: jax.Array, weights: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(weights == 0, 0, losses * weights))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _losses_of(static: _Static, hidden: jax.Array, head: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the loss of each label, [B, T], given [B, T, D], [D, V] and [B, T]."""
    split = _Split.create(static, hidden)
    head = split.gathered(head)

    def chunk(head: jax.Array, _: None, inputs: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
        (x, head), labels = split.in_loop(inputs[0], head), inputs[1]
        return None, _losses(static, _products(static, x, head), labels)[0]

    return split.rows(
        jax.lax.scan(_closed(chunk, head), None, (split.chunks(hidden), split.chunks(labels)))[1]
    )


def _losses_backward(static: _Static, inputs: Any, changes: jax.Array) -> tuple[Any, ...]:
    hidden, head, labels = inputs
    _, d_hidden, d_head = _gradients(static, _products_again, hidden, head, labels, changes)
    return d_hidden, d_head.astype(head.dtype), None


_losses_of.defvjp(lambda static, *inputs: (_losses_of(static, *inputs), inputs), _losses_backward)


@dataclass(frozen=True)
class _Split:
    """The chunks of a batch, and the groups of devices of the current mesh."""

    num_rows: int
    length: int
    parts: int
    """The number of parts into which the axis `sequence` splits each row; each is a row of its own here."""
    size: int
    """The number of positions in each chunk."""
    axes: tuple[str, ...]
    """The axes of the mesh that split rows and their parts."""
    num_split: int
    """The number of groups of devices that have different rows."""
    groups: int
    gathers_once: bool

    @classmethod
    def create(cls, static: _Static, hidden: jax.Array) -> "_Split":
        B, T, _ = hidden.shape
        parts = sequence_ways() if sequence_ways() <= T else 1
        local = -(-T // parts)
        size = -(-local // max(1, -(-local // static.chunk)))
        axes = axes_splitting(B)
        sizes = jax.sharding.get_abstract_mesh().shape
        num_split = math.prod(sizes[axis] for axis in axes)
        groups = num_split * parts if static.gathers_once else 1
        axes = (*axes, *position_axes()) if parts > 1 else axes
        return cls(B, T, parts, size, axes, num_split, groups, static.gathers_once)

    def chunks(self, x: jax.Array) -> jax.Array:
        """Return [B, T, ...] as [n, g, r, ...], padded with zeros at the end."""
        x = self._in_parts(x)
        x = jnp.pad(x, [(0, 0), (0, -x.shape[1] % self.size), *[(0, 0)] * (x.ndim - 2)])
        x = jnp.moveaxis(x.reshape(self.groups, -1, x.shape[1] // self.size, self.size, *x.shape[2:]), 2, 0)
        x = x.reshape(*x.shape[:2], -1, *x.shape[4:])
        leading = (None,) * (1 if self.gathers_once else 2)
        return self.placed(x, *leading, self.axes) if self.axes else x

    def rows(self, x: jax.Array) -> jax.Array:
        """Return [n, g, r, ...] as [B, T, ...]."""
        x = jnp.moveaxis(x.reshape(*x.shape[:2], -1, self.size, *x.shape[3:]), 0, 2)
        x = x.reshape(self.num_rows * self.parts, -1, *x.shape[4:])[:, : -(-self.length // self.parts)]
        if self.parts > 1:
            x = x.reshape(self.num_split, self.parts, -1, *x.shape[1:]).swapaxes(1, 2)
            x = x.reshape(self.num_rows, -1, *x.shape[4:])
        return x[:, : self.length]

    def _in_parts(self, x: jax.Array) -> jax.Array:
        """Return the parts of rows, [B * parts, T / parts, ...], in the order of the devices."""
        if self.parts == 1:
            return x
        x = jnp.pad(x, [(0, 0), (0, -self.length % self.parts), *[(0, 0)] * (x.ndim - 2)])
        x = x.reshape(self.num_split, -1, self.parts, x.shape[1] // self.parts, *x.shape[2:]).swapaxes(1, 2)
        return x.reshape(-1, *x.shape[3:])

    def gathered(self, head: jax.Array) -> jax.Array:
        """Return the head as each group of devices holds it: all features of a part of the vocabulary."""
        return self.placed(head, None, feature_axes(head.shape[1]) or None) if self.gathers_once else head

    def in_loop(self, x: jax.Array, head: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return features and head; keep XLA from gathering the head before the loop."""
        return (x, head) if self.gathers_once else jax.lax.optimization_barrier((x, head))

    def placed(self, x: jax.Array, *spec: Any) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, P(*spec)) if jax.sharding.get_abstract_mesh().shape else x


def _gradients(
    static: _Static,
    products: Callable[..., jax.Array],
    hidden: jax.Array,
    head: jax.Array,
    labels: jax.Array,
    weights: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the losses, and the gradients of their weighted sum; the head's has the dtype of sums."""
    split = _Split.create(static, hidden)
    whole = split.gathered(head)
    vocabulary = feature_axes(head.shape[1]) or None

    def placed(d_head: jax.Array) -> jax.Array:
        return split.placed(d_head, split.axes, None, vocabulary) if static.gathers_once else d_head

    def chunk(whole: jax.Array, d_head: jax.Array, inputs: tuple[jax.Array, ...]) -> Any:
        (x, whole), labels, weight = split.in_loop(inputs[0], whole), *inputs[1:]
        losses, pulled = _losses(static, products(static, x, whole), labels)
        d_logits = pulled(weight).astype(x.dtype)
        dot = partial(jnp.einsum, preferred_element_type=static.dtype)
        d_head += dot("grd,grv->gdv", x, d_logits)
        return placed(d_head), (losses, dot("grv,dv->grd", d_logits, whole).astype(x.dtype))

    start = placed(jnp.zeros((split.groups, *head.shape), static.dtype))
    inputs = tuple(map(split.chunks, (hidden, labels, weights)))
    d_head, (losses, d_hidden) = jax.lax.scan(_closed(chunk, whole), start, inputs)
    return split.rows(losses), split.rows(d_hidden), d_head.sum(0)


def _closed(body: Callable[..., Any], whole: jax.Array) -> Callable[..., Any]:
    """Return the body of a loop as one operation.

    A policy of a surrounding `jax.checkpoint`, such as "dots", then does not see the matrix products in the
    body. It would keep the results, which are the logits, of all chunks.
    """
    closed = jax.custom_jvp(body)
    closed.defjvp(lambda primals, tangents: jax.jvp(body, primals, tangents))
    return partial(closed, whole)


def _products(static: _Static, x: jax.Array, head: jax.Array) -> jax.Array:
    return jnp.matmul(x, head, preferred_element_type=static.dtype)


# `jax.checkpoint` gives recomputed operations this name, and the count of FLOPs looks for it.
_products_again = jax.named_scope("rematted_computation")(_products)


def _losses(static: _Static, products: jax.Array, labels: jax.Array) -> tuple[jax.Array, Any]:
    """Return the losses [g, r] of a chunk, and a function from weights to the gradient of the products."""
    cap, smoothing, V = static.softcap, static.smoothing, products.shape[-1]
    logits = products if cap is None else cap * jnp.tanh(products / cap)
    largest = logits.max(-1, keepdims=True)
    shifted = logits - largest
    exponentials = jnp.exp(shifted)
    total = exponentials.sum(-1, keepdims=True)
    # Indexing would gather the logits, which are split over the devices by vocabulary. A masked sum does not.
    is_label = labels[..., None] == jnp.arange(V, dtype=labels.dtype)
    at_label = jnp.where(is_label, shifted, 0).sum(-1, keepdims=True)
    log_total = jnp.log(total)
    losses = log_total - at_label
    if smoothing:
        losses = log_total - (1 - smoothing) * at_label - smoothing * shifted.mean(-1, keepdims=True)
    log_sum = log_total + largest
    if static.z_loss:
        losses += static.z_loss * log_sum**2

    def pulled(weights: jax.Array) -> jax.Array:
        weight = weights[..., None].astype(static.dtype)
        slope = weight * (1 + 2 * static.z_loss * log_sum) if static.z_loss else weight
        change = slope / total * exponentials - jnp.where(is_label, (1 - smoothing) * weight, 0)
        change = change - weight * (smoothing / V) if smoothing else change
        return change if cap is None else change * (1 - (logits / cap) ** 2)

    return losses[..., 0], pulled
