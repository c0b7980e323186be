"""Arrays that lie in a file as they lie in memory: row-major, one value behind the other.

What is wanted of one is read as the stretch from its first row to its last, rows being along the leading
dimension; parts that have the same rows, as devices that split other dimensions want, share one reading.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.checkpoint._lazy import Index, LazyArray
from meshwright.checkpoint._object_file import Part
from meshwright.checkpoint._object_path import Directory, ObjectPath
from meshwright.errors import DamagedError

Stretch = Callable[[int, int], np.ndarray]
"""Returns the values from the first of two numbers to before the second, counted through the whole array."""


def from_stretches(shape: tuple[int, ...], dtype: np.dtype, stretch: Stretch) -> LazyArray:
    """Return the array whose values `stretch` returns."""
    return LazyArray(shape, dtype, _Rows(shape, stretch))


def in_file(path: Directory, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> LazyArray:
    """Return the array that begins `offset` bytes into a file. `dtype` may be of another byte order.

    Raises:
      DamagedError (when it is read): the file is missing, or ends before.
    """

    def stretch(first: int, last: int) -> np.ndarray:
        content = read_at(path, offset + first * dtype.itemsize, (last - first) * dtype.itemsize)
        return np.frombuffer(content, dtype).astype(dtype.newbyteorder("="), copy=False)

    return from_stretches(shape, dtype.newbyteorder("="), stretch)


def read_at(path: Directory, offset: int, nbytes: int) -> bytes:
    """Return bytes of a file.

    Raises:
      DamagedError: it is missing, or ends before.
    """
    if not nbytes:
        return b""
    if isinstance(path, ObjectPath):
        whole = Part(path, 0, offset + nbytes)
        return whole.answer(whole.request(offset, offset + nbytes))
    if not path.is_file():
        raise DamagedError(f"{path} is missing. Copy the whole checkpoint again.")
    with path.open("rb") as file:
        file.seek(offset)
        content = file.read(nbytes)
    if len(content) != nbytes:
        raise DamagedError(f"{path} ends before byte {offset + nbytes}. Copy it again.")
    return content


def beginning(path: Directory, nbytes: int) -> bytes:
    """Return the first bytes of a file, all where it has fewer, and none where there is no file."""
    try:
        return read_at(path, 0, nbytes)
    except DamagedError:
        return path.read_bytes() if path.is_file() else b""


@dataclass(frozen=True)
class _Rows:
    """What a `LazyArray` of stretches reads with."""

    shape: tuple[int, ...]
    stretch: Stretch

    def __call__(self, index: Index) -> np.ndarray:
        return self.parts([index])[0]

    def parts(self, indices: Sequence[Index]) -> list[np.ndarray]:
        if not self.shape:
            return [self.stretch(0, 1).reshape(()).copy() for _ in indices]
        wanted = [range(self.shape[0])[index[0]] for index in indices]
        read = {rows: self._read(rows) for rows in dict.fromkeys(wanted)}
        return [
            read[rows][(slice(None), *index[1:])].copy() for rows, index in zip(wanted, indices, strict=True)
        ]

    def _read(self, rows: range) -> np.ndarray:
        row_size = math.prod(self.shape[1:])
        values = self.stretch(rows.start * row_size, max(rows.start, rows.stop) * row_size)
        return values.reshape(len(rows), *self.shape[1:])


def in_memory(value: Any) -> LazyArray:
    """Return an array, or a number, that is there already."""
    array = np.asarray(value)
    return LazyArray(array.shape, array.dtype, lambda index: np.array(array[index]))


def viewed(array: LazyArray, dtype: np.dtype) -> LazyArray:
    """Return an array whose bits are those of another dtype of the same size."""
    return LazyArray(array.shape, dtype, lambda index: array.read(index).view(dtype))
