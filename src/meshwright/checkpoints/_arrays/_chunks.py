"""Index arithmetic for arrays stored in chunks: which chunks overlap a part, and where.

A part of an array is given by slices (`Index`) or by its bounds. Chunks all have one shape, and are numbered
in row-major order of the grid that they form.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshwright.checkpoints._arrays._lazy import Index
from meshwright.errors import UsageError

_SLAB = 16 << 20  # bytes

Bounds = tuple[tuple[int, int], ...]
"""The first index and the one after the last, for each dimension."""


class Share(NamedTuple):
    """The overlap of one chunk with one part."""

    part: int
    """The number of the part."""
    into: Index
    """The overlap as an index into the part."""
    within: Index
    """The overlap as an index into the chunk."""


def bounds_of(index: Index, shape: tuple[int, ...]) -> Bounds:
    """Return the bounds of a part that is given as slices."""
    return tuple(_bounds(part, size) for part, size in zip(index, shape, strict=True))


def as_rows(parts: tuple[Bounds, ...]) -> Bounds | None:
    """Return the union of several parts, if they are consecutive rows; otherwise None."""
    first, *others = parts
    if not others or not first:
        return None
    for previous, following in itertools.pairwise(parts):
        if following[0][0] != previous[0][1] or following[1:] != first[1:]:
            return None
    return ((first[0][0], others[-1][0][1]), *first[1:])


@functools.lru_cache(maxsize=4096)
def chunks_of(
    parts: tuple[Bounds, ...], shape: tuple[int, ...], chunk_shape: tuple[int, ...]
) -> list[tuple[int, list[Share]]]:
    """Return the chunks that overlap any of the parts, by number, each with its overlaps."""
    shares: dict[int, list[Share]] = {}
    for part, bounds in enumerate(parts):
        for position, into, within in shares_of(bounds, chunk_shape):
            number = row_major(position, grid(shape, chunk_shape))
            shares.setdefault(number, []).append(Share(part, into, within))
    return sorted(shares.items())


def grid(shape: tuple[int, ...], chunk_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of chunks along each dimension."""
    return tuple(-(-size // chunk) for size, chunk in zip(shape, chunk_shape, strict=True))


def row_major(position: Sequence[int], counts: Sequence[int]) -> int:
    """Return the row-major number of a cell in a grid."""
    number = 0
    for along_dim, count in zip(position, counts, strict=True):
        number = number * count + along_dim
    return number


def _bounds(part: slice, size: int) -> tuple[int, int]:
    start, stop, step = part.indices(size)
    if step != 1:
        raise UsageError(f"cannot read {part}: slices must have step 1. Read the range, and take its steps.")
    return start, max(start, stop)


def overlapping(bounds: Bounds, chunk_shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the grid positions of the chunks that overlap a part."""
    dims = zip(bounds, chunk_shape, strict=True)
    return itertools.product(
        *(range(start // chunk, -(-stop // chunk) if start < stop else 0) for (start, stop), chunk in dims)
    )


def shares_of(bounds: Bounds, chunk_shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Index, Index]]:
    """Yield the chunks that overlap a part: grid position, index into the part, index into the chunk."""
    for position in overlapping(bounds, chunk_shape):
        into, within = [], []
        for (start, stop), cell, chunk in zip(bounds, position, chunk_shape, strict=True):
            first, last = max(start, cell * chunk), min(stop, (cell + 1) * chunk)
            into.append(slice(first - start, last - start))
            within.append(slice(first - cell * chunk, last - cell * chunk))
        yield position, tuple(into), tuple(within)


def cuts(shape: Sequence[int], sizes: Sequence[int]) -> Iterator[Index]:
    """Yield the pieces of an array in row-major order; the last along a dimension may be smaller."""
    dims = zip(shape, sizes, strict=True)
    return itertools.product(
        *([slice(start, min(start + size, end)) for start in range(0, end, size)] for end, size in dims)
    )


def slabs(shape: tuple[int, ...], itemsize: int) -> Iterator[Index]:
    """Yield contiguous slabs of an array, of at most 16 MiB each, in row-major order.

    Their bytes, one slab after the other, are those of the array. So an array of any size can be processed in
    little memory.
    """
    # As much of each dimension as fits into a slab together with all of those behind it.
    fitting = (_SLAB // max(1, itemsize * math.prod(shape[dim + 1 :])) for dim in range(len(shape)))
    return cuts(shape, [max(1, min(pair)) for pair in zip(shape, fitting, strict=True)])
