"""Weighted means that can be computed in parts and added up exactly."""

import math
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from meshwright.base._internal import documented, values_of
from meshwright.errors import UsageError


def widened(values: ArrayLike, what: str = "a metric") -> jax.Array:
    """Return real numbers or booleans as float32; those of eight bytes as float64."""
    x = jnp.asarray(values)
    if not _is_real(x.dtype):
        raise UsageError(f"{what} has the dtype {x.dtype}; expected real numbers.")
    return x.astype(jnp.float64 if jnp.dtype(x.dtype).itemsize == 8 else jnp.float32)


def _is_real(dtype: Any) -> bool:
    is_complex = jnp.issubdtype(dtype, jnp.complexfloating)
    return dtype == jnp.bool_ or (jnp.issubdtype(dtype, jnp.number) and not is_complex)


@documented
@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Mean:
    """A weighted mean, kept as total and count, so that the means of parts add up to the mean of the whole.

    Return one from a loss or a measure where examples have different weights: a mean over tokens then stays
    exact over microbatches, steps and devices. It is a pytree of two scalars, and passes through `jit`,
    `scan` and `psum` like these.

    Example:
      >>> losses = jnp.array([[1.0, 3.0], [5.0, 0.0]])
      >>> mask = jnp.array([[1, 1], [1, 0]])  # the last token is padding
      >>> mw.Mean.of(losses, mask)
      Mean(3, count=3)
      >>> float(mw.Mean.of(losses[:1]) + mw.Mean.of(losses[1:], mask[1:]))
      3.0
    """

    total: ArrayLike
    """The sum of the values, each times its weight."""
    count: ArrayLike
    """The sum of the weights."""

    @classmethod
    def of(cls, values: ArrayLike, weights: ArrayLike | None = None) -> Self:
        """Return the mean over all elements of an array, summed in float32 or, for 8-byte dtypes, in float64.

        Args:
          values: Numbers of any shape and real dtype.
          weights: The weight of each value, or None for 1. They broadcast to the shape of `values`: for
            values [batch, length], weights of examples have the shape [batch, 1]. A value of weight 0 does
            not count, even if it is NaN.

        Raises:
          UsageError: The values are complex, or not numbers.
        """
        values = widened(values, "the array given to Mean.of")
        if weights is None:
            return cls(jnp.sum(values), jnp.asarray(values.size, values.dtype))
        weights = jnp.broadcast_to(jnp.asarray(weights, values.dtype), values.shape)
        return cls(jnp.sum(jnp.where(weights == 0, 0, values * weights)), jnp.sum(weights))

    def __add__(self, other: "Mean") -> "Mean":
        return Mean(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> jax.Array:
        """The mean; NaN if the count is 0."""
        return jnp.true_divide(self.total, self.count)

    def __float__(self) -> float:
        """Return the mean as a Python float. Waits for the devices."""
        return float(self.value)

    def __repr__(self) -> str:
        total, count = values_of(self.total), values_of(self.count)
        if total is None or count is None or total.shape or count.shape:
            return f"Mean(total={self.total!r}, count={self.count!r})"
        mean = float(total) / float(count) if count else math.nan
        return f"Mean({mean:.6g}, count={float(count):.6g})"
