"""Reads Meshwright's format: a `Source` for one step directory.

Chunks are read in blocks of rows directly into arrays, with checksums taken while a block is in the cache.

    chunk     rows 0 to 3 | rows 4 to 7 | ...      blocks, read by two threads if there is much to read
    targets   any number of arrays, each of which gets a part of the chunk

A block that goes to one target as a whole is read directly into it, others through a buffer.
"""

import functools
import math
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock, local
from typing import Any, NamedTuple

import numpy as np

from meshwright.base._internal import AHEAD_BYTES, Directory, ObjectBytes, ObjectPath, crc32, joined, parts_of
from meshwright.checkpoints._arrays._chunks import Bounds, as_rows, bounds_of, chunks_of
from meshwright.checkpoints._arrays._lazy import Index, LazyArray
from meshwright.checkpoints._arrays._source import described
from meshwright.checkpoints._format._container import ALIGNMENT
from meshwright.checkpoints._format._manifest import ChunkPlace, SavedArray, read_manifest
from meshwright.errors import CheckpointError, DamagedError

_BLOCK = 4 << 20  # bytes
_NUM_THREADS = 2
_buffers = local()


class Target(NamedTuple):
    """A part of a chunk, and the array to read it into."""

    within: Index
    out: np.ndarray


class Chunk(NamedTuple):
    """A chunk to read: its file, its offset, shape and dtype there, and the targets of its parts."""

    file: int | ObjectBytes
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype
    targets: Sequence[Target]


def read_chunks(chunks: Sequence[Chunk], *, checksums: bool) -> list[int | None]:
    """Fill all targets, and return the CRC-32 of each chunk; None if the file ends before the chunk's end.

    Without `checksums`, only the rows that targets need are read, and the numbers are meaningless.
    """
    blocks = [list(_blocks(chunk, checksums)) for chunk in chunks]
    all_blocks = [block for chunk_blocks in blocks for block in chunk_blocks]
    # Threads cost more than they save, if there is little to read.
    is_large = len(all_blocks) > 1 and sum(block.nbytes for block in all_blocks) > 2 * _BLOCK
    crcs = iter((_threads().map if is_large else map)(_read_block, all_blocks))
    return [_joined([next(crcs) for _ in chunk_blocks], chunk_blocks) for chunk_blocks in blocks]


class _Block(NamedTuple):
    chunk: Chunk
    first: int
    last: int
    """The block's rows: indices along the leading dimension. A chunk without dimensions is one row."""

    @property
    def row_nbytes(self) -> int:
        return math.prod(self.chunk.shape[1:]) * self.chunk.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return (self.last - self.first) * self.row_nbytes


def _blocks(chunk: Chunk, every_row: bool) -> Iterable[_Block]:
    num_rows = chunk.shape[0] if chunk.shape else 1
    nbytes = AHEAD_BYTES if isinstance(chunk.file, ObjectBytes) else _BLOCK
    step = max(1, nbytes // _Block(chunk, 0, 1).row_nbytes)
    for first in range(0, num_rows, step):
        block = _Block(chunk, first, min(first + step, num_rows))
        if every_row or any(_shared(block, target) for target in chunk.targets):
            yield block


def _read_block(block: _Block) -> int | None:
    """Read one block into its targets and return its CRC-32; None if the file ends before it."""
    shares = [(shared, target) for target in block.chunk.targets if (shared := _shared(block, target))]
    straight = _straight(block, shares)
    buffer = _buffer(block.nbytes) if straight is None else straight
    if not _read(block.chunk.file, buffer, block.chunk.offset + block.first * block.row_nbytes):
        return None
    crc = crc32(buffer)
    if straight is None:
        rows = buffer.view(block.chunk.dtype).reshape(block.last - block.first, *block.chunk.shape[1:])
        for (into, of_block), target in shares:
            _rows(target.out)[into] = rows[(of_block, *target.within[1:])]
    return crc


def _shared(block: _Block, target: Target) -> tuple[slice, slice] | None:
    """Return the rows that a block shares with a target: as rows of the target, and as rows of the block."""
    start, stop, _ = target.within[0].indices(block.chunk.shape[0]) if block.chunk.shape else (0, 1, 1)
    first, last = max(start, block.first), min(stop, block.last)
    if first >= last:
        return None
    return slice(first - start, last - start), slice(first - block.first, last - block.first)


def _straight(block: _Block, shares: Sequence[tuple[tuple[slice, slice], Target]]) -> np.ndarray | None:
    """Return the memory that the whole block goes to, if it is contiguous and of one target; else None."""
    if len(shares) != 1:
        return None
    (into, _), target = shares[0]
    out = _rows(target.out)[into]
    if out.nbytes != block.nbytes or not out.flags.c_contiguous:
        return None
    return out.reshape(-1).view(np.uint8)


def _rows(array: np.ndarray) -> np.ndarray:
    return array if array.ndim else array[None]


def _buffer(nbytes: int) -> np.ndarray:
    """Return this thread's buffer."""
    if len(getattr(_buffers, "room", b"")) < nbytes:
        _buffers.room = np.empty(max(nbytes, _BLOCK), np.uint8)
    return _buffers.room[:nbytes]


def _read(file: int | ObjectBytes, buffer: np.ndarray, offset: int) -> bool:
    """Fill `buffer` from the file; return False if the file ends before."""
    if isinstance(file, ObjectBytes):
        buffer[:] = file[offset : offset + len(buffer)]
        return True
    while len(buffer):
        count = os.preadv(file, [buffer.data], offset)
        if not count:
            return False
        buffer, offset = buffer[count:], offset + count
    return True


def _joined(crcs: Sequence[int | None], blocks: Sequence[_Block]) -> int | None:
    """Return the CRC-32 of a chunk, given those of its blocks."""
    if len(crcs) == 1:
        return crcs[0]
    whole = 0
    for crc, block in zip(crcs, blocks, strict=True):
        if crc is None:
            return None
        whole = joined(whole, crc, block.nbytes)
    return whole


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_NUM_THREADS, "checkpoint-reader")


# A forked process inherits no threads.
os.register_at_fork(after_in_child=_threads.cache_clear)


_SMALL = 1 << 20  # bytes; in smaller arrays, parts that are consecutive rows are read as one
_MEMORY = 64 << 20  # bytes allocated at once


@contextmanager
def errors_naming_unreadable() -> Iterator[None]:
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
        rows = as_rows(parts) if sum(chunk.size for chunk in array.chunks) < _SMALL else None
        if rows is None:
            return self._read_parts(name, array, parts)
        (joint,) = self._read_parts(name, array, (rows,))
        return [joint[first - rows[0][0] : last - rows[0][0]] for (first, last), *_ in parts]

    def _read_parts(self, name: str, array: SavedArray, parts: tuple[Bounds, ...]) -> list[np.ndarray]:
        shared = chunks_of(parts, array.shape, array.chunk_shape)
        # Opening the files checks their sizes, before memory is allocated.
        for number, _ in shared:
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
        # A chunk is verified once: later reads need only the rows that are asked for.
        due = {number for number in targets if self._verify and (name, number) not in self._verified}
        for numbers, verify in ((targets.keys() - due, False), (due, True)):
            chunks = [self._chunk(name, array, number, targets[number]) for number in sorted(numbers)]
            for number, crc in zip(sorted(numbers), read_chunks(chunks, checksums=verify), strict=True):
                self._check(name, array.chunks[number], crc, verify)
        self._verified.update((name, number) for number in due)

    def _chunk(self, name: str, array: SavedArray, number: int, targets: list[Target]) -> Chunk:
        chunk = array.chunks[number]
        file = self._file(name, chunk)
        return Chunk(file, chunk.offset, array.chunk_shape, np.dtype(array.dtype), targets)

    def _check(self, name: str, chunk: ChunkPlace, crc: int | None, verify: bool) -> None:
        if crc is None:
            raise self._damaged(name, chunk, "the file ends before them")
        if verify and crc != chunk.crc32:
            raise self._damaged(name, chunk, f"the CRC-32 is {crc:08x} instead of {chunk.crc32:08x}")

    def _file(self, name: str, chunk: ChunkPlace) -> int | ObjectBytes:
        """Return a data file, opened once: a file descriptor or, in a store, its `ObjectBytes`."""
        with self._opening:
            if chunk.file not in self._files:
                self._files[chunk.file] = self._opened(name, chunk)
            return self._files[chunk.file]

    @errors_naming_unreadable()
    def _opened(self, name: str, chunk: ChunkPlace) -> int | ObjectBytes:
        expected = self.manifest.files[chunk.file]
        path = self.path / expected.name
        if isinstance(path, ObjectPath):
            return ObjectBytes(parts_of(path, expected.nbytes))
        if not path.exists():
            raise self._damaged(name, chunk, "the file is missing")
        if (nbytes := path.stat().st_size) != expected.nbytes:
            raise self._damaged(name, chunk, f"the file has {nbytes} bytes instead of {expected.nbytes}")
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # The file is closed when this source is garbage.
        weakref.finalize(self, os.close, file)
        return file

    def _damaged(self, name: str, chunk: ChunkPlace, reason: str) -> DamagedError:
        path = self.path / self.manifest.files[chunk.file].name
        return DamagedError(
            f"cannot read {name} from {path}, {chunk.size} bytes at offset {chunk.offset}: {reason}. "
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
            memory, self._room = self._room[:nbytes], self._room[-(-nbytes // ALIGNMENT) * ALIGNMENT :]
        return memory


def _aligned(nbytes: int) -> np.ndarray:
    room = np.empty(nbytes + ALIGNMENT, np.uint8)
    # XLA uses aligned memory without a copy.
    first = -room.ctypes.data % ALIGNMENT
    return room[first : first + nbytes]
