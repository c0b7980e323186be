"""Arrays that lie in a file as they do in memory: row-major and not compressed."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from meshwright.checkpoint._lazy import Index, LazyArray

_GAP = 1 << 15
"""Bytes between two pieces that are wanted, up to which both are read as one: a request costs more."""
_PIECE = 16 << 20
"""Bytes that are read at a time, of which not all are wanted."""


class Bytes(Protocol):
    """Bytes that are sliced, with both ends: those of a file, say."""

    def __getitem__(self, part: slice, /) -> np.ndarray:
        """Return them in memory of their own."""
        ...


def raw_array(file: Bytes, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> LazyArray:
    """Return the array that begins at byte `offset` of `file`.

    Of a part no more is read than its own bytes and the short gaps between them.
    """
    strides = tuple(math.prod(shape[dim + 1 :]) * dtype.itemsize for dim in range(len(shape)))

    def read(index: Index) -> np.ndarray:
        wanted = [range(size)[part] for size, part in zip(shape, index, strict=True)]
        sizes = [len(part) for part in wanted]
        nbytes = math.prod(sizes) * dtype.itemsize
        first = offset + _distance([part.start for part in wanted], strides)
        if nbytes == 0 or nbytes == _span(sizes, strides, dtype.itemsize):
            return file[first : first + nbytes].view(dtype).reshape(sizes)
        out = np.empty(sizes, dtype)
        for place in _pieces(sizes, strides, dtype.itemsize):
            piece = out[place]
            start = first + _distance([part.start for part in place], strides)
            inner = file[start : start + _span(piece.shape, strides, dtype.itemsize)]
            piece[...] = np.ndarray(piece.shape, dtype, inner.data, strides=strides)
        return out

    return LazyArray(shape, dtype, read)


def _distance(position: Sequence[int], strides: Sequence[int]) -> int:
    return sum(at * stride for at, stride in zip(position, strides, strict=True))


def _span(sizes: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """Return the bytes from the first to the last element of a part of these sizes, both included."""
    return _distance([size - 1 for size in sizes], strides) + itemsize


def _pieces(sizes: Sequence[int], strides: Sequence[int], itemsize: int) -> Iterator[Index]:
    """Yield the pieces of a part that are read at a time, as indices into it.

    From the last dimension on, as many are read as one as have short gaps between them.
    """
    dim = len(sizes)
    while dim and strides[dim - 1] - _span(sizes[dim:], strides[dim:], itemsize) <= _GAP:
        dim -= 1
    rows = max(1, _PIECE // strides[dim]) if dim < len(sizes) else 1
    steps = [1] * dim + [rows] * (dim < len(sizes)) + list(sizes[dim + 1 :])
    yield from itertools.product(*map(_cuts, sizes, steps))


def _cuts(size: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]
