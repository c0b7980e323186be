"""Gaussian noise on the parameters, in training (Graves, Practical Variational Inference, 2011)."""

import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from meshwright import tree
from meshwright.patterns import Table, judge, value_of
from meshwright.train._by_path import ByPath
from meshwright.tree import PyTree

Std = Callable[[jax.Array], jax.Array]
"""The standard deviation of the noise on an array."""

_STREAM = zlib.crc32(b"parameter noise")


def noised(loss: Callable[..., Any], noise: ByPath[float | Std]) -> Callable[..., Any]:
    """Return `loss`, stateful or not, under Gaussian noise on the parameters that a rule matches.

    The parameters are noised as the loss is given them, after any cast, and stay as they are; gradients are
    those at the noised ones. Each microbatch draws anew. The key of the loss is the one it would have had
    without noise. Train with it and evaluate the loss itself, which has none.

    Args:
      noise: `[("embed", 0.01), (".*", relative(0.05))]`: a standard deviation, or a function of the array.

    Raises:
      UsageError: a pattern is not a regular expression; or, when the loss is called, one decides nothing of
        its parameters.
    """
    noise = tuple(noise)
    table = Table.of("parameter_noise", noise)

    def one(name: str, x: jax.Array, key: jax.Array) -> jax.Array:
        std = value_of(noise, f"params/{name}", None)
        if std is None or not jnp.issubdtype(x.dtype, jnp.inexact):
            return x
        # Of complex numbers both parts are noised, so that the deviation is that of their distance.
        dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.complexfloating) else float
        drawn = jax.random.normal(jax.random.fold_in(key, zlib.crc32(name.encode())), x.shape, dtype)
        return (x + (std(x) if callable(std) else std) * drawn).astype(x.dtype)

    def with_noise(params: PyTree, batch: PyTree, key: jax.Array, *model_state: PyTree) -> Any:
        judge({table: tree.leaf_names({"params": params})})
        stream = jax.random.fold_in(key, _STREAM)
        params = tree.map_named(lambda name, x: one(name, x, stream), params)
        return loss(params, batch, key, *model_state)

    return with_noise


def relative(std: float) -> Std:
    """Return a standard deviation as so much of the array's root mean square, not differentiated."""
    return lambda x: jax.lax.stop_gradient(
        std * jnp.sqrt(jnp.mean(jnp.square(jnp.abs(x).astype(jnp.float32))))
    )
