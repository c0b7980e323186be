"""Functions for `from_checkpoint(adapt=)`: they make an array of another shape from a checkpoint's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from meshwright.errors import CheckpointError

Adapt = Callable[[np.ndarray, jax.ShapeDtypeStruct], Any]
"""Makes of a saved array, in the dtype that is wanted, one as is wanted; or what else a builder may give."""


def truncate(dim: int = 0) -> Adapt:
    """Keep the first rows of dimension `dim`, as many as are wanted.

    Raises (when called):
      CheckpointError: there are fewer, or another dimension differs.
    """
    return Truncate(dim, from_left=False)


def truncate_left(dim: int = 0) -> Adapt:
    """Keep the last rows of dimension `dim`, as many as are wanted.

    Raises: as `truncate`.
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
    """Put the saved rows first in dimension `dim`; the rest is as it is initialised.

    Raises (when called):
      CheckpointError: there are more than are wanted, or another dimension differs.
    """
    return ReplacePrefix(dim)


@dataclass(frozen=True)
class ReplacePrefix:
    """The function that `replace_prefix` returns."""

    dim: int

    def __call__(self, saved: np.ndarray, wanted: jax.ShapeDtypeStruct) -> Callable[[jax.Array], jax.Array]:
        has, wants = _lengths(saved, wanted, self.dim)
        if has > wants:
            raise CheckpointError(f"{has} in dimension {self.dim}, only {wants} wanted; `truncate` shortens.")
        return lambda fresh: jax.lax.dynamic_update_slice(fresh, saved, [0] * saved.ndim)


def _enough(saved: np.ndarray, wanted: jax.ShapeDtypeStruct, dim: int) -> int:
    """Return how many rows are wanted; there are as many."""
    has, wants = _lengths(saved, wanted, dim)
    if has < wants:
        raise CheckpointError(f"{has} in dimension {dim}, {wants} wanted; `replace_prefix` lengthens.")
    return wants


def _lengths(saved: np.ndarray, wanted: jax.ShapeDtypeStruct, dim: int) -> tuple[int, int]:
    """Return what dimension `dim` has, and is wanted to have; all others are equal."""
    sizes = zip(saved.shape, wanted.shape, strict=False)
    differing = [d for d, (has, wants) in enumerate(sizes) if has != wants]
    is_there = saved.ndim == len(wanted.shape) and -saved.ndim <= dim < saved.ndim
    if not is_there or differing not in ([], [dim % saved.ndim]):
        raise CheckpointError(
            f"shape {saved.shape} in the checkpoint, {wanted.shape} wanted; only dimension {dim} may differ."
        )
    return saved.shape[dim], wanted.shape[dim]
