"""Arrays with a first dimension that is split over the stages of a pipeline, one place for each."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from meshwright.base._internal import PyTree
from meshwright.parallel._internal import MICROBATCH, PIPELINE, split_over_stages, stage_ways


def along(mask: Any, x: Any) -> Any:
    """Return a mask of the first dimension in the shape that broadcasts against `x`."""
    return jnp.asarray(mask).reshape(-1, *(1,) * (x.ndim - 1))


def over_microbatches(function: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
    """Return a function of one microbatch for several, side by side, each on the devices of a stage."""
    return jax.vmap(function, in_axes, axis_name=MICROBATCH, spmd_axis_name=PIPELINE)


def sent_on(x: Any, distance: int = 1) -> Any:
    """Return an array whose first dimension is split over the stages, after each device has sent its part on.

    A `jnp.roll` would do the same, but its gradient would be sent as two arrays.
    """
    stages = stage_ways()

    def sent(part: Any) -> Any:
        return jax.lax.ppermute(part, PIPELINE, [(i, (i + distance) % stages) for i in range(stages)])

    return _on_each(sent, x)


def swapped(state: Mapping[int, Any], queue: Mapping[int, Any], stage: int) -> tuple[Any, Any]:
    """Let what is at one stage change places with what is in the queue there."""

    def exchanged(x: Any, y: Any) -> Any:
        return split_over_stages(jnp.where(along(jnp.arange(x.shape[0]) == stage, x), y, x))

    return jax.tree.map(exchanged, state, queue), jax.tree.map(exchanged, queue, state)


def at_index(x: PyTree, index: Any) -> PyTree:
    """Return of arrays [p, n, ...] one of the n at each stage, [p, ...]."""

    def selected(x: Any, index: Any) -> Any:
        return jax.lax.dynamic_index_in_dim(x, index[0], 1, keepdims=False)

    return jax.tree.map(lambda x: _on_each(selected, x, index), x)


def put(x: PyTree, new: PyTree, index: Any) -> PyTree:
    """Return arrays [p, n, ...] with new ones, [p, ...], at one of the n at each stage."""

    def replaced(x: Any, new: Any, index: Any) -> Any:
        return jax.lax.dynamic_update_index_in_dim(x, new, index[0], 1)

    return jax.tree.map(lambda x, new: _on_each(replaced, x, new, index), x, new)


def _on_each(function: Callable[..., Any], *arrays: Any) -> Any:
    """Call a function of each device's parts."""
    split = P(PIPELINE)
    return jax.shard_map(function, in_specs=split, out_specs=split, axis_names={PIPELINE}, check_vma=False)(
        *arrays
    )
