"""Reads arrays that are stored in a file as in memory: row-major and not compressed."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from meshwright.checkpoints._arrays._chunks import cuts
from meshwright.checkpoints._arrays._lazy import Index, LazyArray

_GAP = 1 << 15
"""The largest gap, in bytes, between two pieces that are read as one: another request would cost more."""
_PIECE = 16 << 20
"""Bytes read at a time if they contain gaps."""


class Bytes(Protocol):
    """Bytes that are read by slicing, such as those of a file."""

    def __getitem__(self, part: slice, /) -> np.ndarray:
        """Return a copy of the bytes of `part`, a slice with both ends."""
        ...


def raw_array(file: Bytes, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> LazyArray:
    """Return the array that begins at byte `offset` of `file`.

    Reading a part reads only its own bytes and short gaps between them. If several parts lie in each other's
    gaps, such as columns for several devices, the bytes are read once.
    """
    return LazyArray(shape, dtype, _Raw(file, offset, shape, dtype))


@dataclass(frozen=True)
class _Raw:
    """The `read` of a `LazyArray` whose values are contiguous in a file."""

    file: Bytes
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype

    def __call__(self, index: Index) -> np.ndarray:
        return self._read(self._bounds(index))

    def parts(self, indices: Sequence[Index]) -> list[np.ndarray]:
        """Return several parts. Parts of the same rows are cut from one that contains them all."""
        wanted = [self._bounds(index) for index in indices]
        num_leading = 1 + sum(stride > _GAP for stride in self._strides)
        together: dict[Any, list[int]] = {}
        for number, part in enumerate(wanted):
            together.setdefault(tuple(part[:num_leading]), []).append(number)
        found: dict[int, np.ndarray] = {}
        for numbers in together.values():
            found |= zip(numbers, self._cut([wanted[number] for number in numbers]), strict=True)
        return [found[number] for number in range(len(wanted))]

    def _cut(self, parts: Sequence[Sequence[range]]) -> list[np.ndarray]:
        """Return parts, cut from the smallest part that contains them all."""
        hull = [
            range(min(x.start for x in dim), max(x.stop for x in dim)) for dim in zip(*parts, strict=True)
        ]
        whole = self._read(hull)
        return [np.asarray(whole[_within(part, hull)], order="C") for part in parts]

    def _bounds(self, index: Index) -> list[range]:
        return [range(size)[part] for size, part in zip(self.shape, index, strict=True)]

    @property
    def _strides(self) -> tuple[int, ...]:
        return tuple(math.prod(self.shape[dim + 1 :]) * self.dtype.itemsize for dim in range(len(self.shape)))

    def _read(self, wanted: Sequence[range]) -> np.ndarray:
        sizes, strides, itemsize = [len(part) for part in wanted], self._strides, self.dtype.itemsize
        nbytes = math.prod(sizes) * itemsize
        first = self.offset + _distance([part.start for part in wanted], strides)
        if nbytes == 0 or nbytes == _span(sizes, strides, itemsize):
            return self.file[first : first + nbytes].view(self.dtype).reshape(sizes)
        out = np.empty(sizes, self.dtype)
        for place in _pieces(sizes, strides, itemsize):
            piece = out[place]
            start = first + _distance([part.start for part in place], strides)
            inner = self.file[start : start + _span(piece.shape, strides, itemsize)]
            piece[...] = np.ndarray(piece.shape, self.dtype, inner.data, strides=strides)
        return out


def _within(part: Sequence[range], hull: Sequence[range]) -> Index:
    return tuple(slice(x.start - y.start, x.stop - y.start) for x, y in zip(part, hull, strict=True))


def _distance(position: Sequence[int], strides: Sequence[int]) -> int:
    return sum(at * stride for at, stride in zip(position, strides, strict=True))


def _span(sizes: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """Return the number of bytes from the first to the last element of a part, both included."""
    return _distance([size - 1 for size in sizes], strides) + itemsize


def _pieces(sizes: Sequence[int], strides: Sequence[int], itemsize: int) -> Iterator[Index]:
    """Yield the pieces of a part that are read at a time, as indices into it.

    The last dimensions are read together as long as the gaps between their elements are short.
    """
    dim = len(sizes)
    while dim and strides[dim - 1] - _span(sizes[dim:], strides[dim:], itemsize) <= _GAP:
        dim -= 1
    rows = max(1, _PIECE // strides[dim]) if dim < len(sizes) else 1
    steps = [1] * dim + [rows] * (dim < len(sizes)) + list(sizes[dim + 1 :])
    yield from cuts(sizes, steps)
