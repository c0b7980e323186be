"""Means that can be taken apart and put together again without losing any weight."""

import math
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from meshwright.docstrings import documented
from meshwright.errors import UsageError
from meshwright.shown import values_of


def widened(values: ArrayLike, what: str = "a metric") -> jax.Array:
    """Return numbers or truth values of any dtype as float32, those of eight bytes as float64.

    Raises:
      UsageError: they are complex, or no numbers, naming `what`.
    """
    x = jnp.asarray(values)
    if not _is_real(x.dtype):
        raise UsageError(f"{what} is of dtype {x.dtype}, but must be of real numbers.")
    return x.astype(jnp.float64 if jnp.dtype(x.dtype).itemsize == 8 else jnp.float32)


def _is_real(dtype: Any) -> bool:
    is_complex = jnp.issubdtype(dtype, jnp.complexfloating)
    return dtype == jnp.bool_ or (jnp.issubdtype(dtype, jnp.number) and not is_complex)


@documented
@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Mean:
    """A weighted mean that is not divided yet, so that means of parts add up to the mean of the whole.

    A pytree of two scalars: it goes through `jit`, `scan` and `psum` as they do.
    """

    total: ArrayLike
    """The sum of the values, each times its weight."""
    count: ArrayLike
    """The sum of the weights."""

    @classmethod
    def of(cls, values: ArrayLike, weights: ArrayLike | None = None) -> Self:
        """Return the mean over all elements of `values`, of any dtype, summed in at least float32.

        `weights` broadcasts to the shape of `values` (per-example weights of `[batch, length]`
        values have the shape `[batch, 1]`) and is 1 if left out. Weight 0 means "not there":
        whatever a padded example computes, NaN included, does not count.

        Raises:
          UsageError: the values are complex, or no numbers.
        """
        values = widened(values, "what is given to Mean.of")
        if weights is None:
            return cls(jnp.sum(values), jnp.asarray(values.size, values.dtype))
        weights = jnp.broadcast_to(jnp.asarray(weights, values.dtype), values.shape)
        return cls(jnp.sum(jnp.where(weights == 0, 0, values * weights)), jnp.sum(weights))

    def __add__(self, other: "Mean") -> "Mean":
        return Mean(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> jax.Array:
        """The mean; NaN where nothing was counted."""
        return jnp.true_divide(self.total, self.count)

    def __float__(self) -> float:
        """Return the mean as a number of Python. It waits for the devices."""
        return float(self.value)

    def __repr__(self) -> str:
        total, count = values_of(self.total), values_of(self.count)
        if total is None or count is None or total.shape or count.shape:
            return f"Mean(total={self.total!r}, count={self.count!r})"
        mean = float(total) / float(count) if count else math.nan
        return f"Mean({mean:.6g}, count={float(count):.6g})"
