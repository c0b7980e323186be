"""Files of other systems' checkpoints, local or in an object store, read in parts.

A raw array is stored in a file as in memory: row-major and not compressed. Hugging Face's index tells the
files of a checkpoint that has several:

    {"metadata": {"total_size": 128}, "weight_map": {"layer.w": "model-00001-of-00002.safetensors", …}}
"""

import io
import math
import os
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from meshwright.base._internal import (
    Directory,
    ObjectBytes,
    ObjectPath,
    Part,
    check_depth,
    open_file,
    parse_json,
    read_each,
)
from meshwright.checkpoints._arrays._chunks import cuts
from meshwright.checkpoints._arrays._lazy import Index, LazyArray
from meshwright.errors import CheckpointError, DamagedError, listed


class File:
    """A file whose bytes are read by slicing, also on several threads."""

    def __init__(self, path: Directory, nbytes: int | None = None):
        """Open the file; if `nbytes` is given, it must have this size."""
        self.path = path
        try:
            self.nbytes = _size(path, nbytes)
        except FileNotFoundError:
            raise DamagedError(f"{path} is missing. Copy it again.") from None
        if nbytes not in (None, self.nbytes):
            raise self.damaged(f"it has {self.nbytes} bytes, but should have {nbytes}")
        if isinstance(path, ObjectPath):
            self._bytes = ObjectBytes([Part(path, 0, self.nbytes)])
        else:
            with open_file(path) as file:
                self._bytes = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._bytes)

    def __getitem__(self, part: slice) -> np.ndarray:
        """Return a copy of the bytes of `part`, a slice with both ends."""
        # A part of no rows that begins at a column may begin behind the last byte.
        if part.start == part.stop:
            return np.empty(0, np.uint8)
        if part.start < 0:
            raise self.damaged(f"data should begin {-part.start} bytes before its start")
        if part.stop > self.nbytes:
            raise self.damaged(f"it ends at byte {self.nbytes}, but should have at least {part.stop} bytes")
        if isinstance(self._bytes, ObjectBytes):
            return self._bytes[part]
        return self._pread(self._bytes, part)

    def stream(self) -> io.RawIOBase:
        """Return the file as a seekable stream for one thread."""
        return _Stream(self)

    def damaged(self, how: str) -> DamagedError:
        """Return an error about damage to the file."""
        return DamagedError(f"{self.path} is damaged: {how}. Copy it again.")

    def _pread(self, file: int, part: slice) -> np.ndarray:
        buffer = np.empty(part.stop - part.start, np.uint8)
        filled = 0
        while filled < len(buffer):
            count = os.preadv(file, [buffer[filled:].data], part.start + filled)
            if not count:
                raise self.damaged("it became shorter while it was read")
            filled += count
        return buffer


class _Stream(io.RawIOBase):
    def __init__(self, file: File):
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.nbytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, room: Any, /) -> int:
        content = self._file[self._at : max(self._at, min(self._at + len(room), self._file.nbytes))]
        room[: len(content)] = content.data
        self._at += len(content)
        return len(content)


def head(path: Directory, nbytes: int) -> bytes:
    """Return the first bytes of a file, fewer if it is shorter; none if it does not exist."""
    if isinstance(path, ObjectPath):
        answer = path.answer_with_size(path.request(0, nbytes))
        return bytes(answer[0]) if answer else b""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(nbytes)


def read_json(path: Directory) -> Any:
    """Return the content of a JSON file."""
    try:
        content = parse_json(read_each([path])[0])
        check_depth(content)
        return content
    except ValueError as error:
        raise DamagedError(f"{path} is damaged: {error}. Copy it again.") from None


def read_document(path: Directory) -> dict[str, Any]:
    """Return the content of a JSON file that holds an object."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise DamagedError(f"{path} is damaged: it does not hold a JSON object. Copy it again.")
    return content


def _size(path: Directory, nbytes: int | None) -> int:
    if not isinstance(path, ObjectPath):
        return path.stat().st_size
    # The size is checked when a part is read.
    if nbytes is not None:
        return nbytes
    if (entry := path.look()) is None:
        raise FileNotFoundError(str(path))
    return entry.nbytes


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
        bounds = [self._bounds(index) for index in indices]
        # Parts that agree in the dimensions with large strides lie close together.
        num_leading = 1 + sum(stride > _GAP for stride in self._strides)
        together: dict[Any, list[int]] = {}
        for number, part in enumerate(bounds):
            together.setdefault(tuple(part[:num_leading]), []).append(number)
        parts: dict[int, np.ndarray] = {}
        for numbers in together.values():
            parts |= zip(numbers, self._cut([bounds[number] for number in numbers]), strict=True)
        return [parts[number] for number in range(len(bounds))]

    def _cut(self, parts: Sequence[Sequence[range]]) -> list[np.ndarray]:
        """Return parts, cut from the smallest part that contains them all."""
        hull = [
            range(min(x.start for x in dim), max(x.stop for x in dim)) for dim in zip(*parts, strict=True)
        ]
        whole = self._read(hull)
        indices = (
            tuple(slice(x.start - y.start, x.stop - y.start) for x, y in zip(part, hull, strict=True))
            for part in parts
        )
        return [np.asarray(whole[index], order="C") for index in indices]

    def _bounds(self, index: Index) -> list[range]:
        return [range(size)[part] for size, part in zip(self.shape, index, strict=True)]

    @property
    def _strides(self) -> tuple[int, ...]:
        return tuple(math.prod(self.shape[dim + 1 :]) * self.dtype.itemsize for dim in range(len(self.shape)))

    def _read(self, bounds: Sequence[range]) -> np.ndarray:
        sizes, strides, itemsize = [len(part) for part in bounds], self._strides, self.dtype.itemsize
        nbytes = math.prod(sizes) * itemsize
        first = self.offset + _distance([part.start for part in bounds], strides)
        if nbytes == 0 or nbytes == _span(sizes, strides, itemsize):
            return self.file[first : first + nbytes].view(self.dtype).reshape(sizes)
        out = np.empty(sizes, self.dtype)
        for position in _pieces(sizes, strides, itemsize):
            piece = out[position]
            start = first + _distance([part.start for part in position], strides)
            inner = self.file[start : start + _span(piece.shape, strides, itemsize)]
            piece[...] = np.ndarray(piece.shape, self.dtype, inner.data, strides=strides)
        return out


def _distance(position: Sequence[int], strides: Sequence[int]) -> int:
    return sum(index * stride for index, stride in zip(position, strides, strict=True))


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


def only_index(directory: Directory, pattern: str, single: str) -> Directory | None:
    """Return the index in a directory, by a pattern; `single` is the name of a checkpoint in one file."""
    indices = sorted(directory.glob(pattern), key=str)
    if len(indices) > 1:
        names = ", ".join(index.name for index in indices)
        raise CheckpointError(f"{directory} has several index files, {names}. Move all but one away.")
    if indices and (directory / single).is_file() and single not in read_index(indices[0])[0].values():
        raise CheckpointError(
            f"{directory} has {single} and {indices[0].name}, which does not list it: two checkpoints, of "
            "which "
            "loaders take one or the other. Move one away, with its files."
        )
    return indices[0] if indices else None


def check_listed(index: Directory, files: Mapping[str, str], arrays: Mapping[str, Collection[str]]) -> None:
    """Check that the arrays in the files of an index, by file, are those that it lists, with their files."""
    if missing := [name for name, file in files.items() if name not in arrays[file]]:
        file = index.parent / files[missing[0]]
        raise DamagedError(f"{file} lacks {missing[0]}, which {index.name} lists there.")
    if extra := [
        f"{name} of {file}" for file, names in arrays.items() for name in names if name not in files
    ]:
        raise CheckpointError(f"{index} does not list {listed(extra)}. Add them to it, or write them anew.")


def read_index(index: Directory) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the file name of each array, and the metadata."""
    try:
        document = read_document(index)
        files = {name: str(file) for name, file in document["weight_map"].items()}
        metadata = dict(document.get("metadata") or {})
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise DamagedError(
            f"{index} has no valid map from arrays to files: {error!r}. Copy it again."
        ) from None
    if outside := [file for file in files.values() if "/" in file]:
        raise CheckpointError(
            f"{index} names {outside[0]}, a file in another directory, which is not opened."
        )
    return files, metadata
