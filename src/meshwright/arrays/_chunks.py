"""Parts of arrays: the chunks in which they lie, which of these hold what of a part, and slabs."""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshwright.arrays._lazy import Index
from meshwright.errors import UsageError

_SLAB = 16 << 20  # bytes

Bounds = tuple[tuple[int, int], ...]
"""The first element and the one after the last, for each dimension."""


class Share(NamedTuple):
    """What one chunk holds of one part."""

    part: int
    into: Index
    """Where it stands in the part."""
    within: Index
    """Where it stands in the chunk."""


def bounds_of(index: Index, shape: tuple[int, ...]) -> Bounds:
    """Return the bounds of a part that is given as slices.

    Raises:
      UsageError: A slice has another step than 1.
    """
    return tuple(_bounds(part, size) for part, size in zip(index, shape, strict=True))


def as_rows(parts: tuple[Bounds, ...]) -> Bounds | None:
    """Return the one part that several are, if they are rows of it and lie one after the other."""
    first, *others = parts
    if not others or not first:
        return None
    for before, after in itertools.pairwise(parts):
        if after[0][0] != before[0][1] or after[1:] != first[1:]:
            return None
    return ((first[0][0], others[-1][0][1]), *first[1:])


@functools.lru_cache(maxsize=4096)
def chunks_of(
    parts: tuple[Bounds, ...], shape: tuple[int, ...], chunk_shape: tuple[int, ...]
) -> list[tuple[int, list[Share]]]:
    """Return the number of each chunk that holds something of the parts, with what of which."""
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
    """Return the number of the cell at `position` in a grid of `counts`, counted in row-major order."""
    number = 0
    for along_dim, count in zip(position, counts, strict=True):
        number = number * count + along_dim
    return number


def _bounds(part: slice, size: int) -> tuple[int, int]:
    start, stop, step = part.indices(size)
    if step != 1:
        raise UsageError(f"cannot read {part}: slices must have step 1.")
    return start, max(start, stop)


def overlapping(bounds: Bounds, chunk_shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Return the grid positions of the chunks that lie within the bounds, wholly or in part."""
    dims = zip(bounds, chunk_shape, strict=True)
    return itertools.product(
        *(range(start // chunk, -(-stop // chunk) if start < stop else 0) for (start, stop), chunk in dims)
    )


def shares_of(bounds: Bounds, chunk_shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Index, Index]]:
    """Yield the chunks that have some of a part: which, where in the part that is, and where in the chunk."""
    for position in overlapping(bounds, chunk_shape):
        into, within = [], []
        for (start, stop), place, chunk in zip(bounds, position, chunk_shape, strict=True):
            first, last = max(start, place * chunk), min(stop, (place + 1) * chunk)
            into.append(slice(first - start, last - start))
            within.append(slice(first - place * chunk, last - place * chunk))
        yield position, tuple(into), tuple(within)


def cuts(shape: Sequence[int], sizes: Sequence[int]) -> Iterator[Index]:
    """Yield the parts of an array cut into such sizes, in row-major order; the last may be smaller."""
    dims = zip(shape, sizes, strict=True)
    return itertools.product(
        *([slice(start, min(start + size, end)) for start in range(0, end, size)] for end, size in dims)
    )


def slabs(shape: tuple[int, ...], itemsize: int) -> Iterator[Index]:
    """Yield the slabs of an array, of at most 16 MiB where an item is no larger.

    So one of any size passes through little memory. They are contiguous and come in row-major order: put one
    after the other they are the array's bytes.
    """
    # Of one dimension all, if all of it fits, or else what fits.
    fitting = (_SLAB // max(1, itemsize * math.prod(shape[dim + 1 :])) for dim in range(len(shape)))
    return cuts(shape, [max(1, min(pair)) for pair in zip(shape, fitting, strict=True)])
