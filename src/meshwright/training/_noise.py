"""Gaussian noise on the parameters during training (Graves, Practical Variational Inference, 2011)."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from meshwright.base._internal import PyTree, Table, judge, tree, value_of
from meshwright.training._by_path import ByPath
from meshwright.training._loss import of_loss

Std = Callable[[jax.Array], jax.Array]
"""A function that takes an array and returns the standard deviation of the noise on it."""

_STREAM = zlib.crc32(b"parameter noise")


def with_parameter_noise(loss: Callable[..., Any], noise: ByPath[float | Std]) -> Callable[..., Any]:
    """Return a loss that adds Gaussian noise to the parameters that a rule matches, and calls `loss`.

    The noise is added to the parameters that the loss receives, after any cast. The stored parameters do not
    change. The gradients are those at the parameters with noise. Each microbatch gets new noise. The loss
    receives the same key as without noise. Use the returned loss for training, and `loss` itself for
    evaluation.

    Args:
      loss: A `Loss` or a `StatefulLoss`.
      noise: A table of patterns and standard deviations, `[("embed", 0.01), (".*", relative_std(0.05))]`. A
        standard deviation is a number or a function of the array.

    Raises:
      UsageError: A pattern is not a regular expression. Or, when the loss is called, a pattern has no effect
        on its parameters.

    Example:
      >>> loss = lambda params, batch, key: (params["w"] * batch["x"]).mean()
      >>> noisy = mw.training.with_parameter_noise(loss, [("w", 0.1)])
      >>> params, batch = {"w": jnp.ones(4)}, {"x": jnp.ones(4)}
      >>> float(loss(params, batch, None)), float(noisy(params, batch, mw.training.key_of(0))) != 1.0
      (1.0, True)
    """
    return LossWithNoise(loss, tuple(noise))


@dataclass(frozen=True)
class LossWithNoise:
    """The loss that `with_parameter_noise` makes."""

    loss: Callable[..., Any]
    noise: ByPath[float | Std]

    def __post_init__(self) -> None:
        # This raises an error if a pattern is not a regular expression.
        Table.of("parameter_noise", self.noise)

    def __call__(
        self, params: PyTree, batch: PyTree, key: jax.Array, *model_state: PyTree, step: Any = None
    ) -> Any:
        judge({Table.of("parameter_noise", self.noise): tree.leaf_names({"params": params})})
        stream = jax.random.fold_in(key, _STREAM)
        params = tree.map_named(
            lambda name, x: _with_noise(name, x, value_of(self.noise, f"params/{name}", None), stream), params
        )
        return of_loss(self.loss, params, batch, key, *model_state, step=step)


def _with_noise(name: str, x: jax.Array, std: float | Std | None, key: jax.Array) -> jax.Array:
    if std is None or not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    # Both parts of a complex number get noise. Its standard deviation is that of the distance moved.
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.complexfloating) else float
    drawn = jax.random.normal(jax.random.fold_in(key, zlib.crc32(name.encode())), x.shape, dtype)
    return (x + (std(x) if callable(std) else std) * drawn).astype(x.dtype)


def relative_std(std: float) -> Std:
    """Return a function for a standard deviation of `std` times the root mean square of the array.

    The standard deviation is not differentiated.
    """
    return Relative(std)


@dataclass(frozen=True)
class Relative:
    """The standard deviation that `relative_std` makes."""

    std: float

    def __call__(self, x: jax.Array) -> jax.Array:
        squares = jnp.square(jnp.abs(x).astype(jnp.float32))
        return jax.lax.stop_gradient(self.std * jnp.sqrt(jnp.mean(squares)))
