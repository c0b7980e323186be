"""Which chunks hold what of several parts of an array: worked out once for all arrays of one shape."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshwright.arrays._lazy import Index
from meshwright.errors import UsageError

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
        for position in overlapping(bounds, chunk_shape):
            number = row_major(position, grid(shape, chunk_shape))
            shares.setdefault(number, []).append(Share(part, *_overlap(bounds, position, chunk_shape)))
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
    return itertools.product(*(range(start // chunk, -(-stop // chunk)) for (start, stop), chunk in dims))


def _overlap(bounds: Bounds, position: tuple[int, ...], chunk_shape: tuple[int, ...]) -> tuple[Index, Index]:
    """Return what a chunk and the bounds share: as an index into the part, and into the chunk."""
    into, within = [], []
    for (start, stop), place, chunk in zip(bounds, position, chunk_shape, strict=True):
        first, last = max(start, place * chunk), min(stop, (place + 1) * chunk)
        into.append(slice(first - start, last - start))
        within.append(slice(first - place * chunk, last - place * chunk))
    return tuple(into), tuple(within)
