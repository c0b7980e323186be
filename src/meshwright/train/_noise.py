"""Gaussian noise on the parameters, in training (Graves, Practical Variational Inference, 2011)."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from meshwright import tree
from meshwright.patterns import Table, judge, value_of
from meshwright.train._by_path import ByPath
from meshwright.train._loss import of_loss
from meshwright.tree import PyTree

Std = Callable[[jax.Array], jax.Array]
"""The standard deviation of the noise on an array."""

_STREAM = zlib.crc32(b"parameter noise")


def with_parameter_noise(loss: Callable[..., Any], noise: ByPath[float | Std]) -> Callable[..., Any]:
    """Return `loss`, stateful or not, under Gaussian noise on the parameters that a rule matches.

    The parameters are noised as the loss is given them, after any cast, and stay as they are; gradients are
    those at the noised ones. Each microbatch draws anew. The key of the loss is the one it would have had
    without noise. Train with it and evaluate the loss itself, which has none.

    Args:
      noise: `[("embed", 0.01), (".*", relative_std(0.05))]`: a deviation, or a function of the array.

    Raises:
      UsageError: a pattern is not a regular expression; or, when the loss is called, one decides nothing of
        its parameters.
    """
    return Noised(loss, tuple(noise))


@dataclass(frozen=True)
class Noised:
    """The loss that `with_parameter_noise` makes."""

    loss: Callable[..., Any]
    noise: ByPath[float | Std]

    def __post_init__(self) -> None:
        Table.of("parameter_noise", self.noise)  # raises if a pattern is none

    def __call__(self, params: PyTree, batch: PyTree, key: jax.Array, *model_state: PyTree) -> Any:
        judge({Table.of("parameter_noise", self.noise): tree.leaf_names({"params": params})})
        stream = jax.random.fold_in(key, _STREAM)
        params = tree.map_named(
            lambda name, x: _with_noise(name, x, value_of(self.noise, f"params/{name}", None), stream), params
        )
        return of_loss(self.loss, params, batch, key, *model_state)


def _with_noise(name: str, x: jax.Array, std: float | Std | None, key: jax.Array) -> jax.Array:
    if std is None or not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    # Of complex numbers both parts are noised, so that the deviation is that of their distance.
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.complexfloating) else float
    drawn = jax.random.normal(jax.random.fold_in(key, zlib.crc32(name.encode())), x.shape, dtype)
    return (x + (std(x) if callable(std) else std) * drawn).astype(x.dtype)


def relative_std(std: float) -> Std:
    """Return a standard deviation as so much of the array's root mean square, not differentiated."""
    return Relative(std)


@dataclass(frozen=True)
class Relative:
    """The standard deviation that `relative_std` makes."""

    std: float

    def __call__(self, x: jax.Array) -> jax.Array:
        squares = jnp.square(jnp.abs(x).astype(jnp.float32))
        return jax.lax.stop_gradient(self.std * jnp.sqrt(jnp.mean(squares)))
