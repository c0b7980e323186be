"""Arrays cut into slabs, so that one of any size passes through little memory."""

import itertools
import math
from collections.abc import Iterator

from meshwright.arrays._lazy import Index

_SLAB = 16 << 20  # bytes


def slabs(shape: tuple[int, ...], itemsize: int) -> Iterator[Index]:
    """Yield the slabs of an array, of at most 16 MiB where an item is no larger.

    They are contiguous and come in row-major order: put one after the other they are the array's bytes.
    """
    rows = [_rows(shape, dim, itemsize) for dim in range(len(shape))]
    yield from itertools.product(*map(_cuts, shape, rows))


def _rows(shape: tuple[int, ...], dim: int, itemsize: int) -> int:
    """Return how much of one dimension a slab spans: all of it, if all of it fits, or else what fits."""
    return max(1, min(shape[dim], _SLAB // max(1, itemsize * math.prod(shape[dim + 1 :]))))


def _cuts(size: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]
