"""Constraints that a model may put on its activations, which say how the mesh of the step splits them."""

import math
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from meshwright.parallel._axes import PIPELINE, SEQUENCE, TENSOR, batch_axes, num_stages
from meshwright.parallel._layout import MICROBATCH, canonical


def shard_batch_dim(x: jax.Array) -> jax.Array:
    """Return activations [examples, ...] split by example over the mesh, with all other dimensions whole.

    On a mesh with the axis `sequence`, the second of three or more dimensions may stay split over it.

    Use it in models that run with fsdp: where activations begin, such as the rows of an embedding, and where
    a scanned layer returns them. Otherwise XLA may split the features as the weights that made them are
    split. Then each device holds the whole batch, and activations are summed over all devices instead of
    gathering a layer's weights: many times the bytes, as `meshwright plan` shows.

    The mesh is that of the surrounding step. Without a mesh, or if it does not divide the examples, `x` is
    returned as it is.

    Args:
      x: Activations [examples, ...].

    Example:
      >>> mw.parallel.shard_batch_dim(jnp.ones((8, 4))).shape
      (8, 4)
    """
    axes = axes_splitting(x.shape[0])
    if sequence_ways() > 1 and x.ndim > 2:
        return jax.lax.with_sharding_constraint(x, P(_examples(x), P.UNCONSTRAINED))
    return jax.lax.with_sharding_constraint(x, canonical(P(axes))) if axes else x


def shard_sequence_dim(x: jax.Array) -> jax.Array:
    """Return activations [examples, positions, ...] split by example, and by position over the axis `tensor`.

    This is sequence parallelism (Korthikanti et al., arXiv:2205.05198). Use it for the residual stream
    between the products that `tensor` splits. Norms, additions and what is kept for the gradient are then
    split, too. The sum after a product becomes a reduce-scatter, and an all-gather comes before the next
    product. Both together send as many bytes as the all-reduce that they replace.

    Without the axis `tensor`, or if it does not divide the positions, only the examples are split. The axis
    `sequence` splits the positions in any case, and `tensor` then splits each part.

    Args:
      x: Activations [examples, positions, ...].

    Example:
      >>> mw.parallel.shard_sequence_dim(jnp.ones((8, 16, 4))).shape
      (8, 16, 4)
    """
    axes = _positions(x)
    return _split(x, {1: axes}) if axes else shard_batch_dim(x)


def gather_sequence_dim(x: jax.Array) -> jax.Array:
    """Return activations [examples, positions, ...] of all positions, which `shard_sequence_dim` had split.

    Use it once before products that `tensor` splits and that have the same factor, such as queries, keys and
    values. XLA could otherwise gather each of them, or their float32 forms. Without the axis `tensor`, `x` is
    returned as it is. The axis `sequence` keeps its split.

    Args:
      x: Activations [examples, positions, ...].

    Example:
      >>> mw.parallel.gather_sequence_dim(jnp.ones((8, 16, 4))).shape
      (8, 16, 4)
    """
    axes = _positions(x)
    if TENSOR not in axes:
        return x
    split = _split(x, {1: axes})
    return _split(split, {1: (SEQUENCE,)}) if SEQUENCE in axes else shard_batch_dim(split)


def shard_tensor_dim(x: jax.Array) -> jax.Array:
    """Return activations [examples, positions, heads or features, ...] split by example, and over `tensor`.

    Use it for the results of products that `tensor` splits: queries, keys and values, attention's output,
    and the hidden features of a feed-forward layer. Without it, the positions split by `shard_sequence_dim`
    may stay split there, and XLA then moves activations between devices. Without the axis `tensor`, or if it
    does not divide the heads, `x` is returned as it is.

    Args:
      x: Activations [examples, positions, heads or features, ...].

    Example:
      >>> mw.parallel.shard_tensor_dim(jnp.ones((8, 16, 4, 32))).shape
      (8, 16, 4, 32)
    """
    if not _divides(TENSOR, x.shape[2]) or not (axes_splitting(x.shape[0]) or sequence_ways() > 1):
        return x
    return _split(x, {1: tuple(axis for axis in _positions(x) if axis == SEQUENCE), 2: (TENSOR,)})


def sequence_ways() -> int:
    """Return the number of parts that the axis `sequence` of the surrounding step's mesh splits rows into.

    It is 1 without a mesh, and inside a `shard_map` over this axis.
    """
    mesh = jax.sharding.get_abstract_mesh()
    # Inside the `shard_map` a model sees one part of the rows.
    return 1 if SEQUENCE in mesh.manual_axes else mesh.shape.get(SEQUENCE, 1)


def stage_ways() -> int:
    """Return the number of stages of pipelines on the surrounding step's mesh."""
    return num_stages(jax.sharding.get_abstract_mesh().shape)


def position_axes(length: int | None = None) -> tuple[str, ...]:
    """Return the axes that split rows along their length, of so many positions if these are given."""
    ways = sequence_ways()
    return (SEQUENCE,) if ways > 1 and (length is None or length % ways == 0) else ()


def feature_axes(size: int) -> tuple[str, ...]:
    """Return the axes that split heads, features or words, if they divide so many of them."""
    return (TENSOR,) if _divides(TENSOR, size) else ()


def _divides(axis: str, size: int) -> bool:
    """Return whether an axis of the mesh has several devices and splits a dimension of this size."""
    ways = jax.sharding.get_abstract_mesh().shape.get(axis, 1)
    return ways > 1 and size % ways == 0


def _positions(x: jax.Array) -> tuple[str, ...]:
    """Return the axes that split the positions of activations [examples, positions, ...]."""
    length, ways = x.shape[1], sequence_ways()
    if ways == 1:
        return (TENSOR,) if _divides(TENSOR, length) and axes_splitting(x.shape[0]) else ()
    if length % ways:
        return ()
    return (SEQUENCE, TENSOR) if _divides(TENSOR, length // ways) else (SEQUENCE,)


def _examples(x: jax.Array) -> Any:
    """Return the entry of a spec for the examples; if no axis divides them, it is left to XLA."""
    return axes_splitting(x.shape[0]) or P.UNCONSTRAINED


def _split(x: jax.Array, axes: Mapping[int, tuple[str, ...]]) -> jax.Array:
    """Return `x` split by example, and over some axes along other dimensions."""
    entries = [_examples(x), *(axes.get(d) or None for d in range(1, max(axes) + 1))]
    return jax.lax.with_sharding_constraint(x, canonical(P(*entries)))


def axes_splitting(num_examples: int) -> tuple[str, ...]:
    """Return the axes of the surrounding step's mesh that split so many examples.

    There are none without a mesh, or if it does not divide the examples.
    """
    sizes, axes = jax.sharding.get_abstract_mesh().shape, _batch_axes()
    return () if num_examples % math.prod(sizes[axis] for axis in axes) else axes


def axes_dividing(num_examples: int) -> tuple[str, ...]:
    """Return the axes of more than one device that divide so many examples together.

    Left out are an axis that does not divide the examples of one part, and the axes of a surrounding
    `shard_map`.
    """
    mesh, axes = jax.sharding.get_abstract_mesh(), []
    for axis in _batch_axes():
        size = mesh.shape[axis]
        if axis not in mesh.manual_axes and size > 1 and num_examples % size == 0:
            axes.append(axis)
            num_examples //= size
    return tuple(axes)


def _batch_axes() -> tuple[str, ...]:
    """Return the axes of the surrounding step's mesh that split its batches."""
    sizes = jax.sharding.get_abstract_mesh().shape
    return batch_axes([axis for axis in sizes if axis not in microbatch_axes()])


def in_microbatch() -> bool:
    """Return whether one of the microbatches of a pipeline is traced, which its axis splits."""
    try:
        jax.lax.axis_size(MICROBATCH)
    except NameError:
        return False
    return True


def microbatch_axes() -> tuple[str, ...]:
    """Return the axes that split microbatches, if one of these is traced.

    The microbatches are a dimension that `vmap` adds. JAX splits it by an axis of a `shard_map` only, so one
    inside of a model needs these axes, too.
    """
    return (PIPELINE,) if in_microbatch() else ()


def embedding_lookup(table: jax.Array, ids: jax.Array) -> jax.Array:
    """Return rows of a table, split by example.

    The table is first gathered along its features, as a layer's weights are.

    Args:
      table: Rows [rows, ..., features].
      ids: Row numbers [examples, ...].

    Returns:
      The rows [examples, ..., features].

    Example:
      >>> mw.parallel.embedding_lookup(jnp.eye(4), jnp.array([[2, 0]]))[0, 0]
      Array([0., 0., 1., 0.], dtype=float32)
    """
    # With whole features, XLA looks rows up where the ids are, and moves no activations.
    if jax.sharding.get_abstract_mesh().shape:
        whole = P(P.UNCONSTRAINED, *(None,) * (table.ndim - 1))
        table = jax.lax.with_sharding_constraint(table, whole)
    return shard_batch_dim(table[ids])
