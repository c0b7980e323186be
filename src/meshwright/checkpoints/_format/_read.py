"""Reads Meshwright's format: a `Source` for one step directory."""

import math
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from meshwright.base._internal import Directory, ObjectBytes, ObjectPath, parts_of
from meshwright.checkpoints._arrays._chunks import Bounds, as_rows, bounds_of, chunks_of
from meshwright.checkpoints._arrays._lazy import Index, LazyArray
from meshwright.checkpoints._arrays._source import described
from meshwright.checkpoints._format._blocks import Chunk, Target, read_chunks
from meshwright.checkpoints._format._container import ALIGNMENT
from meshwright.checkpoints._format._manifest import ChunkPlace, SavedArray, read_manifest
from meshwright.errors import CheckpointError, DamagedError

_SMALL = 1 << 20  # bytes; in smaller arrays, parts that are consecutive rows are read as one
_MEMORY = 64 << 20  # bytes allocated at once


@contextmanager
def telling_unreadable() -> Iterator[None]:
    """Turn a `PermissionError` into a `CheckpointError` that names the file. Also a decorator."""
    try:
        yield
    except PermissionError as error:
        raise CheckpointError(
            f"{error.filename} cannot be read: {error.strerror}. Ask its owner, or read as another user."
        ) from None


class NativeSource:
    """A complete checkpoint in Meshwright's format; `open_source` returns one.

    Only the chunks that are asked for are read, and each is verified once.
    """

    format = "Meshwright"
    """The usual name of the format."""

    def __init__(self, path: Directory, *, verify: bool = True):
        """Read the manifest; no data file is opened yet."""
        self.path = path
        self._verify = verify
        self.manifest = read_manifest(path)
        """The content of `manifest.json`."""
        self.step: int = self.manifest.step
        """The step that was saved."""
        self.extra: Any = self.manifest.extra
        """Values that were saved beside the arrays."""
        self.writer: Any = self.manifest.writer
        """The program that saved it: versions, number of processes, mesh."""
        self._files: dict[int, int | ObjectBytes] = {}
        self._opening = Lock()
        self._memory = _Memory()
        self._verified: set[tuple[str, int]] = set()

    def __str__(self) -> str:
        """Return the path, by which errors call the checkpoint."""
        return str(self.path)

    def __repr__(self) -> str:
        return described(self)

    def arrays(self) -> Mapping[str, LazyArray]:
        """Return all arrays by name; no values are read."""
        impls = self.manifest.prng_keys
        return {
            name: LazyArray(
                array.shape,
                np.dtype(array.dtype),
                _Reader(self, name),
                impls.get(name),
                array.chunk_shape,
                array.checksum,
            )
            for name, array in self.manifest.arrays.items()
        }

    def read(self, name: str, index: Index) -> np.ndarray:
        """Return a part of an array, as a copy that does not depend on files which retention may remove."""
        return self.read_parts(name, [index])[0]

    def read_parts(self, name: str, indices: Sequence[Index]) -> list[np.ndarray]:
        """Return several parts of one array, as `read` does; a chunk that they share is read once."""
        array = self.manifest.arrays[name]
        parts = tuple(bounds_of(index, array.shape) for index in indices)
        rows = as_rows(parts) if sum(place.size for place in array.chunks) < _SMALL else None
        if rows is None:
            return self._read_parts(name, array, parts)
        (joint,) = self._read_parts(name, array, (rows,))
        return [joint[first - rows[0][0] : last - rows[0][0]] for (first, last), *_ in parts]

    def _read_parts(self, name: str, array: SavedArray, parts: tuple[Bounds, ...]) -> list[np.ndarray]:
        shared = chunks_of(parts, array.shape, array.chunk_shape)
        for number, _ in shared:  # checks the sizes of the files before memory is allocated
            self._file(name, array.chunks[number])
        outs = [
            self._memory.empty([last - first for first, last in bounds], np.dtype(array.dtype))
            for bounds in parts
        ]
        targets = {
            number: [
                Target(within, outs[part][into] if into else outs[part]) for part, into, within in shares
            ]
            for number, shares in shared
        }
        self._read_chunks(name, array, targets)
        return outs

    def _read_chunks(self, name: str, array: SavedArray, targets: Mapping[int, list[Target]]) -> None:
        """Fill the targets of each chunk, and verify the chunks that have not been verified yet."""
        due = {number for number in targets if self._verify and (name, number) not in self._verified}
        for numbers, verify in ((targets.keys() - due, False), (due, True)):
            chunks = [self._chunk(name, array, number, targets[number]) for number in sorted(numbers)]
            for number, crc in zip(sorted(numbers), read_chunks(chunks, checksums=verify), strict=True):
                self._check(name, array.chunks[number], crc, verify)
        self._verified.update((name, number) for number in due)

    def _chunk(self, name: str, array: SavedArray, number: int, targets: list[Target]) -> Chunk:
        place = array.chunks[number]
        file = self._file(name, place)
        return Chunk(file, place.offset, array.chunk_shape, np.dtype(array.dtype), targets)

    def _check(self, name: str, place: ChunkPlace, crc: int | None, verify: bool) -> None:
        if crc is None:
            raise self._damaged(name, place, "the file ends before them")
        if verify and crc != place.crc32:
            raise self._damaged(name, place, f"the CRC-32 is {crc:08x} instead of {place.crc32:08x}")

    def _file(self, name: str, place: ChunkPlace) -> int | ObjectBytes:
        """Return a data file, opened once: a file descriptor or, in a store, its `ObjectBytes`."""
        with self._opening:
            if place.file not in self._files:
                self._files[place.file] = self._opened(name, place)
            return self._files[place.file]

    @telling_unreadable()
    def _opened(self, name: str, place: ChunkPlace) -> int | ObjectBytes:
        expected = self.manifest.files[place.file]
        path = self.path / expected.name
        if isinstance(path, ObjectPath):
            return ObjectBytes(parts_of(path, expected.nbytes))
        if not path.exists():
            raise self._damaged(name, place, "the file is missing")
        if (found := path.stat().st_size) != expected.nbytes:
            raise self._damaged(name, place, f"the file has {found} bytes instead of {expected.nbytes}")
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, file)  # closed when this source is garbage
        return file

    def _damaged(self, name: str, place: ChunkPlace, how: str) -> DamagedError:
        path = self.path / self.manifest.files[place.file].name
        return DamagedError(
            f"cannot read {name} from {path}, {place.size} bytes at offset {place.offset}: {how}. "
            "Copy the file again, or use another checkpoint."
        )


@dataclass(frozen=True)
class _Reader:
    """The `read` of a `LazyArray` of this source."""

    source: NativeSource
    name: str

    def __call__(self, index: Index) -> np.ndarray:
        return self.source.read(self.name, index)

    def parts(self, indices: Sequence[Index]) -> list[np.ndarray]:
        return self.source.read_parts(self.name, indices)


class _Memory:
    """An allocator for the arrays that are read, which cuts small arrays from large blocks.

    Allocating one large block takes a fraction of the time of many small ones, as the system clears it in
    large pages. Arrays are aligned so that XLA's CPU devices use them without a copy.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._room = np.empty(0, np.uint8)

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Return an array, as `np.empty` does. A block is freed when all of its arrays are."""
        return self._take(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)

    def _take(self, nbytes: int) -> np.ndarray:
        if nbytes >= _MEMORY // 4:
            return _aligned(nbytes)
        with self._lock:
            if nbytes > len(self._room):
                self._room = _aligned(_MEMORY)
            taken, self._room = self._room[:nbytes], self._room[-(-nbytes // ALIGNMENT) * ALIGNMENT :]
        return taken


def _aligned(nbytes: int) -> np.ndarray:
    room = np.empty(nbytes + ALIGNMENT, np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    return room[first : first + nbytes]
