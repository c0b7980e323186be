"""A file in an object store: one object or, if it is large, several objects whose contents are concatenated.

data-00000-of-00002.zarr.zip            a file of up to 256 MiB
data-00001-of-00002.zarr.zip.00000      a larger one
data-00001-of-00002.zarr.zip.00001

Its bytes are read by slicing, like those of a memory-mapped file.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakSet

import numpy as np

from meshwright.base._storage._path import ObjectPath, write_later
from meshwright.errors import DamagedError, MeshwrightError

OBJECT_BYTES = 1 << 28
"""Stores take objects of 5 GB, but each must be in memory as a whole while it is written."""

_IN_FLIGHT = 3
BLOCK_BYTES = 1 << 23
"""Bytes of one request. A request has a latency of about the time that it takes to transfer them."""

_AHEAD = 8
AHEAD_BYTES = _AHEAD * BLOCK_BYTES
"""Bytes requested ahead by sequential reads."""

_NUM_CACHED, _KEPT_OF_EACH = 32, 4
"""Blocks kept in memory: 256 MB for all files together, but at least the second number for each file."""


@dataclass(frozen=True)
class Part:
    """An object that holds all of a file, or a part of it."""

    path: ObjectPath
    """The object."""
    offset: int
    """The byte of the file at which the object begins."""
    nbytes: int
    """The size that it should have."""

    def request(self, first: int, last: int) -> Any:
        """Request the bytes from `first` up to `last`; `answer` waits for them."""
        return self.path.request(first, last)

    def answer(self, requested: Any) -> memoryview:
        """Return the bytes that were requested."""
        response = self.path.answer_with_size(requested)
        if response is None:
            raise DamagedError(f"{self.path} is missing")
        content, nbytes = response
        if nbytes != self.nbytes:
            raise DamagedError(
                f"{self.path} has {'fewer' if nbytes < self.nbytes else 'more'} than {self.nbytes} bytes"
            )
        return content


def parts_of(path: ObjectPath, nbytes: int) -> list[Part]:
    """Return the objects of a file, in order."""
    if nbytes <= OBJECT_BYTES:
        return [Part(path, 0, nbytes)]
    return [
        Part(path.parent / f"{path.name}.{number:05d}", offset, min(OBJECT_BYTES, nbytes - offset))
        for number, offset in enumerate(range(0, nbytes, OBJECT_BYTES))
    ]


def wrong_objects(path: ObjectPath, nbytes: int) -> list[str]:
    """Return a message for each object of a file that is missing or has another size."""
    requests = [(part, part.request(0, 1)) for part in parts_of(path, nbytes)]
    wrong = []
    for part, requested in requests:
        try:
            part.answer(requested)
        except DamagedError as error:
            wrong.append(str(error))
    return wrong


def put_parts(path: ObjectPath, nbytes: int, contents: Iterable[bytes | bytearray]) -> None:
    """Write a file, several objects at a time."""
    under_way: deque[Any] = deque()
    try:
        for part, content in zip(parts_of(path, nbytes), contents, strict=True):
            if len(under_way) == _IN_FLIGHT:
                under_way.popleft().result()
            under_way.append(write_later(part.path, bytes(content)))
        while under_way:
            under_way.popleft().result()
    finally:
        # After an error: no object may appear after the attempt was removed.
        for write in under_way:
            write.exception()


class ObjectBytes:
    """The bytes of a file in a store, read in blocks, of which the last ones used are cached.

    The cache helps because small arrays lie side by side, and several devices ask for the same chunks. After
    two consecutive blocks the next ones are requested ahead.
    """

    _all: ClassVar[WeakSet["ObjectBytes"]] = WeakSet()

    def __init__(self, parts: Sequence[Part]):
        self._parts = parts
        self._num_blocks = _blocks(slice(0, parts[-1].offset + parts[-1].nbytes)).stop
        self._blocks: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._all.add(self)

    def __getitem__(self, part: slice) -> np.ndarray:
        """Return the bytes of `part`, a slice with both ends."""
        out = np.empty(part.stop - part.start, np.uint8)
        blocks, num_ahead = _blocks(part), min(_AHEAD, self._num_kept() // 2)  # two threads may read
        reads_on = blocks.start - 1 in self._blocks
        stop = min(blocks.stop + num_ahead * reads_on, self._num_blocks)
        for block in blocks:
            for requested_block in range(block, min(block + num_ahead, stop)):
                self._request(requested_block)
            start = block * BLOCK_BYTES
            first, last = max(part.start, start), min(part.stop, start + BLOCK_BYTES)
            content = self._content(block)
            out[first - part.start : last - part.start] = content[first - start : last - start]
        return out

    def _num_kept(self) -> int:
        return max(_KEPT_OF_EACH, _NUM_CACHED // len(self._all))

    def _request(self, block: int) -> Any:
        with self._lock:
            if block not in self._blocks:
                part, first = self._location(block)
                self._blocks[block] = part.request(first, min(first + BLOCK_BYTES, part.nbytes))
                while len(self._blocks) > self._num_kept():
                    self._blocks.popitem(last=False)
            self._blocks.move_to_end(block)
            return self._blocks[block]

    def _location(self, block: int) -> tuple[Part, int]:
        """Return the object that holds a block, and the block's offset in it."""
        part = self._parts[block * BLOCK_BYTES // OBJECT_BYTES if len(self._parts) > 1 else 0]
        return part, block * BLOCK_BYTES - part.offset

    def _content(self, block: int) -> np.ndarray:
        requested = self._request(block)
        if isinstance(requested, np.ndarray):
            return requested
        try:
            content = np.frombuffer(self._location(block)[0].answer(requested), np.uint8)
        except MeshwrightError as error:
            with self._lock:  # so that it is requested again
                self._blocks.pop(block, None)
            if isinstance(error, DamagedError):
                raise DamagedError(f"{error}. Copy it again, or use another checkpoint.") from None
            raise
        with self._lock:
            if block in self._blocks:
                self._blocks[block] = content
        return content


def _blocks(part: slice) -> range:
    """Return the numbers of the blocks that `part` overlaps."""
    return range(part.start // BLOCK_BYTES, -(-part.stop // BLOCK_BYTES))
