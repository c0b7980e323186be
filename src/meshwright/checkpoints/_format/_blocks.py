"""Reads chunks in blocks of rows directly into arrays, with checksums taken while a block is in the cache.

    chunk     rows 0 to 3 | rows 4 to 7 | ...      blocks, read by two threads if there is much to read
    targets   any number of arrays, each of which gets a part of the chunk

A block that goes to one target as a whole is read directly into it, others through a buffer.
"""

import functools
import math
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import local
from typing import NamedTuple

import numpy as np

from meshwright.base._internal import AHEAD_BYTES, ObjectBytes, crc32, joined
from meshwright.checkpoints._arrays._lazy import Index

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
    crcs = iter(_each([block for of_one in blocks for block in of_one]))
    return [_joined([next(crcs) for _ in of_one], of_one) for of_one in blocks]


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


def _each(blocks: Sequence[_Block]) -> Iterable[int | None]:
    large = len(blocks) > 1 and sum(block.nbytes for block in blocks) > 2 * _BLOCK
    return (_threads().map if large else map)(_read_block, blocks)


def _read_block(block: _Block) -> int | None:
    """Read one block into its targets and return its CRC-32; None if the file ends before it."""
    wanted = [(shared, target) for target in block.chunk.targets if (shared := _shared(block, target))]
    straight = _straight(block, wanted)
    room = _buffer(block.nbytes) if straight is None else straight
    if not _read(block.chunk.file, room, block.chunk.offset + block.first * block.row_nbytes):
        return None
    crc = crc32(room)
    if straight is None:
        rows = room.view(block.chunk.dtype).reshape(block.last - block.first, *block.chunk.shape[1:])
        for (into, of_block), target in wanted:
            _rows(target.out)[into] = rows[(of_block, *target.within[1:])]
    return crc


def _shared(block: _Block, target: Target) -> tuple[slice, slice] | None:
    """Return the rows that a block shares with a target: as rows of the target, and as rows of the block."""
    start, stop, _ = target.within[0].indices(block.chunk.shape[0]) if block.chunk.shape else (0, 1, 1)
    first, last = max(start, block.first), min(stop, block.last)
    if first >= last:
        return None
    return slice(first - start, last - start), slice(first - block.first, last - block.first)


def _straight(block: _Block, wanted: Sequence[tuple[tuple[slice, slice], Target]]) -> np.ndarray | None:
    """Return the memory that the whole block goes to, if it is contiguous and of one target; else None."""
    if len(wanted) != 1:
        return None
    (into, _), target = wanted[0]
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


def _read(file: int | ObjectBytes, room: np.ndarray, offset: int) -> bool:
    """Fill `room` from the file; return False if the file ends before."""
    if isinstance(file, ObjectBytes):
        room[:] = file[offset : offset + len(room)]
        return True
    while len(room):
        count = os.preadv(file, [room.data], offset)
        if not count:
            return False
        room, offset = room[count:], offset + count
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


os.register_at_fork(after_in_child=_threads.cache_clear)  # a forked process inherits no threads
