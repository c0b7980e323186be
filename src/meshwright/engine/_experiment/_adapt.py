"""Functions for `from_checkpoint(adapt=)`, which change the shape of a saved array."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from meshwright.errors import CheckpointError

Adapt = Callable[[np.ndarray, jax.ShapeDtypeStruct], Any]
"""A function of a saved array, which has the wanted dtype, and of the wanted struct. It returns the array to
use, or a function of the initialised array that returns it."""


def truncate(dim: int = 0) -> Adapt:
    """Return a function that keeps the first rows of a dimension, as many as are wanted.

    The function raises a `CheckpointError` if there are fewer rows, or if another dimension differs.

    Args:
      dim: The dimension.

    Example:
      >>> cut = mw.engine.truncate()
      >>> cut(np.arange(5), jax.ShapeDtypeStruct((3,), int)).tolist()
      [0, 1, 2]
    """
    return Truncate(dim, from_left=False)


def truncate_left(dim: int = 0) -> Adapt:
    """Return a function that keeps the last rows of a dimension, as many as are wanted.

    It raises the errors of `truncate`.

    Args:
      dim: The dimension.

    Example:
      >>> mw.engine.truncate_left()(np.arange(5), jax.ShapeDtypeStruct((3,), int)).tolist()
      [2, 3, 4]
    """
    return Truncate(dim, from_left=True)


@dataclass(frozen=True)
class Truncate:
    """The function that `truncate` and `truncate_left` return."""

    dim: int
    from_left: bool

    def __call__(self, saved: np.ndarray, wanted: jax.ShapeDtypeStruct) -> np.ndarray:
        num_rows = _enough(saved, wanted, self.dim)
        return np.take(saved, range(-num_rows, 0) if self.from_left else range(num_rows), self.dim)


def replace_prefix(dim: int = 0) -> Adapt:
    """Return a function that puts the saved rows first in a dimension. The other rows stay as initialised.

    The function raises a `CheckpointError` if there are more rows than wanted, or if another dimension
    differs.

    Args:
      dim: The dimension.

    Example:
      >>> rows = mw.engine.replace_prefix()(np.ones(2), jax.ShapeDtypeStruct((3,), float))
      >>> rows(jnp.zeros(3)).tolist()
      [1.0, 1.0, 0.0]
    """
    return ReplacePrefix(dim)


@dataclass(frozen=True)
class ReplacePrefix:
    """The function that `replace_prefix` returns."""

    dim: int

    def __call__(self, saved: np.ndarray, wanted: jax.ShapeDtypeStruct) -> Callable[[jax.Array], jax.Array]:
        has, wants = _lengths(saved, wanted, self.dim)
        if has > wants:
            raise CheckpointError(
                f"expected at most {wants} rows in dimension {self.dim}; found {has}. Use `truncate`."
            )
        return lambda fresh: jax.lax.dynamic_update_slice(fresh, saved, [0] * saved.ndim)


def _enough(saved: np.ndarray, wanted: jax.ShapeDtypeStruct, dim: int) -> int:
    """Return the number of rows that are wanted. The saved array has at least as many."""
    has, wants = _lengths(saved, wanted, dim)
    if has < wants:
        raise CheckpointError(
            f"expected at least {wants} rows in dimension {dim}; found {has}. Use `replace_prefix`."
        )
    return wants


def _lengths(saved: np.ndarray, wanted: jax.ShapeDtypeStruct, dim: int) -> tuple[int, int]:
    """Return the saved and the wanted size of a dimension. All other dimensions are equal."""
    sizes = zip(saved.shape, wanted.shape, strict=False)
    differing = [d for d, (has, wants) in enumerate(sizes) if has != wants]
    is_there = saved.ndim == len(wanted.shape) and -saved.ndim <= dim < saved.ndim
    if not is_there or differing not in ([], [dim % saved.ndim]):
        raise CheckpointError(
            f"expected shape {wanted.shape}; found {saved.shape}. Only dimension {dim} may differ."
        )
    return saved.shape[dim], wanted.shape[dim]
