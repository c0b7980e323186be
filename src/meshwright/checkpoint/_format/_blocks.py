"""Arrays cut into blocks, so that one of any size passes through little memory."""

import itertools
import math
from collections.abc import Iterator

from meshwright.checkpoint._format._layout import Index

_BLOCK = 16 << 20  # bytes


def blocks(shape: tuple[int, ...], itemsize: int) -> Iterator[Index]:
    """Yield the blocks of an array, of at most 16 MiB where an item is no larger.

    They are contiguous and come in row-major order: put one after the other they are the array's bytes.
    """
    rows = [_rows(shape, dim, itemsize) for dim in range(len(shape))]
    yield from itertools.product(*(_cuts(size, step) for size, step in zip(shape, rows, strict=True)))


def _rows(shape: tuple[int, ...], dim: int, itemsize: int) -> int:
    """Return how much of one dimension a block spans: all of it, if all of it fits, or else what fits."""
    return max(1, min(shape[dim], _BLOCK // max(1, itemsize * math.prod(shape[dim + 1 :]))))


def _cuts(size: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]
