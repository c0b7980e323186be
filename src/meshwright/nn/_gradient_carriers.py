"""Weights inside a `shard_map` over the axes of the batch, whose gradients are summed outside of it.

Inside, JAX adds up the gradients of weights that are whole on each device, and the sum is whole, too.
Outside, XLA adds them up as it does for other layers: under `fsdp` each device gets its part of the sum. So
weights go in without a gradient, and beside them a shadow: zeros with a dimension for the copies of the
weights on the devices, which nothing reads. It takes their gradient, and its sum over copies is theirs.
"""

from functools import partial

import jax
import jax.numpy as jnp

from meshwright.base._internal import PyTree


def with_shadows(weights: PyTree, count: int) -> tuple[PyTree, PyTree]:
    """Return weights without a gradient, and their shadows, [count, ...], which have it."""
    return jax.lax.stop_gradient(weights), jax.tree.map(partial(_shadow, count), weights)


def seen(weights: PyTree, shadows: PyTree) -> PyTree:
    """Return weights whose gradient their shadows take, inside the `shard_map`."""
    return jax.tree.map(_seen, weights, shadows)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _shadow(count: int, weight: jax.Array) -> jax.Array:
    # What is mapped over the weights, such as the stages of a pipeline, must be mapped over their shadows.
    nothing = weight[(slice(0, 0),) * weight.ndim].sum(dtype=weight.dtype)
    return jnp.broadcast_to(nothing, (count, *weight.shape))


_shadow.defvjp(
    lambda count, weight: (_shadow(count, weight), None),
    lambda count, _, changes: (changes.sum(0, dtype=changes.dtype),),
)


@jax.custom_vjp
def _seen(weight: jax.Array, shadow: jax.Array) -> jax.Array:
    return weight


_seen.defvjp(lambda weight, shadow: (weight, None), lambda _, change: (None, change[None]))
