"""Metrics that add up exactly: weighted means, and histograms of arrays.

Histograms are counted on the devices that hold the array. All have the same 505 bins, so that
counts of microbatches, steps and devices add up. Four bins lie between one power of two and the next:

    -2**23 … -1.25 -1 … -2**-40 │ zero │ 2**-40 … 1 1.25 1.5 1.75 2 2.5 3 3.5 4 … 2**23
      252 bins of negatives       1 bin                252 bins of positives

The bin in the middle counts values closer to zero than 2**-40 (9.1e-13). The outermost two also count values
beyond 2**23 (8.4e6). The exponent of a float32 and the two bits after it are the number of its bin, so that
counting needs no logarithm and no search.
"""

import math
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from meshwright.base._internal import documented, values_of
from meshwright.errors import UsageError


def widened(values: ArrayLike, name: str = "a metric") -> jax.Array:
    """Return real numbers or booleans as float32; those of eight bytes as float64."""
    x = jnp.asarray(values)
    if not _is_real(x.dtype):
        raise UsageError(f"{name} has the dtype {x.dtype}; expected real numbers.")
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
        # A value of weight 0 may be NaN, and 0 times NaN is NaN.
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


# W&B takes at most 512 bins.
_LOWEST_POWER, _HIGHEST_POWER, _BINS_PER_POWER = -40, 23, 4
_PER_SIGN = _BINS_PER_POWER * (_HIGHEST_POWER - _LOWEST_POWER)
NUM_BINS = 2 * _PER_SIGN + 1
_NOT_FINITE, _SUM, _SUM_SQUARES, _MIN, _MAX = range(NUM_BINS, NUM_BINS + 5)


def _edges() -> np.ndarray:
    powers = np.exp2(np.arange(_LOWEST_POWER, _HIGHEST_POWER))
    positive = np.append(
        np.outer(powers, 1 + np.arange(_BINS_PER_POWER) / _BINS_PER_POWER), 2.0**_HIGHEST_POWER
    )
    return np.concatenate([-positive[::-1], positive])


EDGES = _edges()
"""The edges of the bins: float64[506]."""


@documented
@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Histogram:
    """A histogram with fixed bins, and the sum, sum of squares, minimum and maximum of its values.

    It is a metric like `Mean`: a loss may return `{"activations": Histogram.of(x)}`. Histograms add up, and
    are pytrees of one small array. One whose `parts` are all 0 is empty.

    Example:
      >>> histogram = mw.observe.Histogram.of(jnp.array([1.0, 1.1, 3.0, jnp.nan]))
      >>> histogram
      Histogram(3 values from 1 to 3, 1 not finite)
      >>> histogram + histogram
      Histogram(6 values from 1 to 3, 2 not finite)
    """

    parts: Any
    """The counts of the 505 bins, the number of values that are not finite, and the sum, sum of squares,
    minimum and maximum: float[510]."""

    @classmethod
    def of(cls, values: ArrayLike) -> Self:
        """Return the histogram over all elements of an array.

        Values that are not finite are in no bin and neither `min` nor `max`, but in the sums. Counting reads
        the array once more (1 ns per element on a CPU core) and moves only the counts between devices. A
        count is exact below 2**32. No gradient flows back.

        Args:
          values: Numbers of any shape and real dtype; they are counted as float32.

        Raises:
          UsageError: The values are complex, or not numbers.
        """
        # The bins are made from the bits of a float32.
        x = widened(values, "the array given to Histogram.of").astype(jnp.float32)
        return cls(_parts(jax.lax.stop_gradient(x)))

    def __add__(self, other: "Histogram") -> "Histogram":
        xp = np if isinstance(self.parts, np.ndarray) and isinstance(other.parts, np.ndarray) else jnp
        return Histogram(xp.stack([self.parts, other.parts])).summed()

    def summed(self) -> "Histogram":
        """Return the sum of several histograms, whose `parts` are stacked along the first dimension."""
        parts = self.parts
        xp = np if isinstance(parts, np.ndarray) else jnp
        has_some = parts[..., :NUM_BINS].sum(-1) > 0
        low = xp.where(has_some, parts[..., _MIN], xp.inf).min(0)
        high = xp.where(has_some, parts[..., _MAX], -xp.inf).max(0)
        extremes = xp.where(has_some.any(0)[..., None], xp.stack([low, high], -1), 0)
        return Histogram(xp.concatenate([parts[..., :_MIN].sum(0), extremes], -1))

    @property
    def num_not_finite(self) -> Any:
        """The number of values that are NaN or infinite."""
        return self.parts[_NOT_FINITE]

    @property
    def sum(self) -> Any:
        """The sum of all values; not finite if one of them is not."""
        return self.parts[_SUM]

    @property
    def sum_squares(self) -> Any:
        """The sum of the squares of all values."""
        return self.parts[_SUM_SQUARES]

    @property
    def min(self) -> Any:
        """The lowest finite value; 0 if there is none."""
        return self.parts[_MIN]

    @property
    def max(self) -> Any:
        """The highest finite value; 0 if there is none."""
        return self.parts[_MAX]

    def bins(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the counts, float64[n], and edges, float64[n + 1], from the first bin in use to the last.

        Empty bins that follow each other are joined, as there are 320 bins between -1 and 1 alone.
        """
        counts = np.asarray(self.parts, np.float64)[:NUM_BINS]
        (used,) = np.nonzero(counts)
        if not len(used):
            used = np.array([_PER_SIGN])  # the bin around zero
        edges = np.union1d(used, used + 1)
        return np.add.reduceat(counts, edges[:-1]), EDGES[edges]

    def __repr__(self) -> str:
        parts = values_of(self.parts)
        if parts is None or parts.ndim != 1:
            return f"Histogram(parts={self.parts!r})"
        count, low, high = parts[:NUM_BINS].sum(), parts[_MIN], parts[_MAX]
        return (
            f"Histogram({count:.0f} values from {low:.6g} to {high:.6g}, {parts[_NOT_FINITE]:.0f} not finite)"
        )


@jax.jit
def _parts(x: jax.Array) -> jax.Array:
    finite = jnp.isfinite(x)
    # Counted in integers, as a float32 stops counting at 2**24.
    counts = jnp.zeros(NUM_BINS, jnp.uint32).at[_bin(x)].add(finite.astype(jnp.uint32))
    low = jnp.min(jnp.where(finite, x, jnp.inf), initial=jnp.inf)
    high = jnp.max(jnp.where(finite, x, -jnp.inf), initial=-jnp.inf)
    extremes = jnp.where(jnp.any(finite), jnp.stack([low, high]), 0)
    others = jnp.stack([jnp.sum(~finite, dtype=jnp.float32), jnp.sum(x), jnp.sum(x * x)])
    return jnp.concatenate([counts.astype(jnp.float32), others, extremes])


def _bin(x: jax.Array) -> jax.Array:
    """Return the number of the bin of each float32, from its bits."""
    bits = jax.lax.bitcast_convert_type(jnp.abs(x), jnp.uint32)
    exponent_and_two_bits = (bits >> 21).astype(jnp.int32)
    # 127 is the exponent's bias.
    lowest = (127 + _LOWEST_POWER) * _BINS_PER_POWER
    from_zero = jnp.clip(exponent_and_two_bits - lowest + 1, 0, _PER_SIGN)
    return _PER_SIGN + jnp.where(x < 0, -from_zero, from_zero)
