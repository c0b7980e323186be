"""A file in an object store: one object or, where it is large, several that put together are the file.

data-00000-of-00002.zarr.zip            up to 256 MiB
data-00001-of-00002.zarr.zip.00000      more
data-00001-of-00002.zarr.zip.00001

Its bytes are sliced like those of a file that is mapped into memory.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakSet

import numpy as np

from meshwright.errors import DamagedError, MeshwrightError
from meshwright.storage._path import ObjectPath, write_later

OBJECT_BYTES = 1 << 28
"""A store takes 5 GB at once, but all of it must be in memory."""

_IN_FLIGHT = 3
BLOCK_BYTES = 1 << 23
"""What is asked for at a time. One request takes about as long as the transfer of this."""

_AHEAD = 8
AHEAD_BYTES = _AHEAD * BLOCK_BYTES
"""What is asked for at once, where so much is wanted."""

_KEPT, _KEPT_OF_EACH = 32, 4
"""Blocks that are kept of all files together, 256 MB, but of each of many files at least so many."""


@dataclass(frozen=True)
class Part:
    """One of the objects."""

    path: ObjectPath
    offset: int
    """Where it begins in the file."""
    nbytes: int
    """How large it should be."""

    def request(self, first: int, last: int) -> Any:
        """Ask for some of its bytes; `answer` awaits them."""
        return self.path.request(first, last)

    def answer(self, requested: Any) -> memoryview:
        """Return the bytes that were asked for.

        Raises:
          DamagedError: There is no such object, or it is of another size.
          MeshwrightError: The store does not answer.
        """
        found = self.path.answer_with_size(requested)
        if found is None:
            raise DamagedError(f"{self.path} is missing")
        content, nbytes = found
        if nbytes != self.nbytes:
            raise DamagedError(
                f"{self.path} has {'fewer' if nbytes < self.nbytes else 'more'} than {self.nbytes} bytes"
            )
        return content


def parts_of(path: ObjectPath, nbytes: int) -> list[Part]:
    """Return the objects of a file of `nbytes`, in order."""
    if nbytes <= OBJECT_BYTES:
        return [Part(path, 0, nbytes)]
    return [
        Part(path.parent / f"{path.name}.{number:05d}", offset, min(OBJECT_BYTES, nbytes - offset))
        for number, offset in enumerate(range(0, nbytes, OBJECT_BYTES))
    ]


def wrong_objects(path: ObjectPath, nbytes: int) -> list[str]:
    """Return what is wrong with the objects of a file of `nbytes`: one is missing, or of another size.

    Raises:
      MeshwrightError: The store does not answer.
    """
    asked = [(part, part.request(0, 1)) for part in parts_of(path, nbytes)]
    wrong = []
    for part, requested in asked:
        try:
            part.answer(requested)
        except DamagedError as error:
            wrong.append(str(error))
    return wrong


def put_parts(path: ObjectPath, nbytes: int, contents: Iterable[bytes | bytearray]) -> None:
    """Write a file of `nbytes`, given the contents of its objects in order, which are copied.

    Raises:
      MeshwrightError: The store does not take them.
    """
    under_way: deque[Any] = deque()
    try:
        for part, content in zip(parts_of(path, nbytes), contents, strict=True):
            if len(under_way) == _IN_FLIGHT:
                under_way.popleft().result()
            under_way.append(write_later(part.path, bytes(content)))
        while under_way:
            under_way.popleft().result()
    finally:
        for written in under_way:  # after an error: nothing may arrive when the attempt has been removed
            written.exception()


class ObjectBytes:
    """A file that is read in blocks, several at a time, of which the latest are kept.

    Small arrays lie side by side, and chunks are asked for by several devices. Who reads two blocks one
    after the other is taken to read on, and finds the next ones on their way.
    """

    _all: ClassVar[WeakSet["ObjectBytes"]] = WeakSet()

    def __init__(self, parts: Sequence[Part]):
        """Take the objects of a file, none of which is opened yet."""
        self._parts = parts
        self._num_blocks = _blocks(slice(0, parts[-1].offset + parts[-1].nbytes)).stop
        self._blocks: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._all.add(self)

    def __getitem__(self, part: slice) -> np.ndarray:
        """Return the bytes of `part`, a slice with both ends.

        Raises:
          DamagedError: An object that holds some of them is missing, or of another size.
          MeshwrightError: The store does not answer.
        """
        out = np.empty(part.stop - part.start, np.uint8)
        blocks, num_ahead = _blocks(part), min(_AHEAD, self._num_kept() // 2)  # as two may read
        reads_on = blocks.start - 1 in self._blocks
        stop = min(blocks.stop + num_ahead * reads_on, self._num_blocks)
        for block in blocks:
            for each in range(block, min(block + num_ahead, stop)):
                self._request(each)
            start = block * BLOCK_BYTES
            first, last = max(part.start, start), min(part.stop, start + BLOCK_BYTES)
            content = self._content(block)
            out[first - part.start : last - part.start] = content[first - start : last - start]
        return out

    def _num_kept(self) -> int:
        return max(_KEPT_OF_EACH, _KEPT // len(self._all))

    def _request(self, block: int) -> Any:
        with self._lock:
            if block not in self._blocks:
                self._blocks[block] = self._asked_for(block)
                while len(self._blocks) > self._num_kept():
                    self._blocks.popitem(last=False)
            self._blocks.move_to_end(block)
            return self._blocks[block]

    def _asked_for(self, block: int) -> Any:
        part, first = self._place(block)
        return part.request(first, min(first + BLOCK_BYTES, part.nbytes))

    def _place(self, block: int) -> tuple[Part, int]:
        """Return the object that holds a block, and where in it the block begins."""
        part = self._parts[block * BLOCK_BYTES // OBJECT_BYTES if len(self._parts) > 1 else 0]
        return part, block * BLOCK_BYTES - part.offset

    def _content(self, block: int) -> np.ndarray:
        requested = self._request(block)
        if isinstance(requested, np.ndarray):
            return requested
        try:
            content = np.frombuffer(self._place(block)[0].answer(requested), np.uint8)
        except MeshwrightError as error:
            with self._lock:  # to be asked for again
                self._blocks.pop(block, None)
            if isinstance(error, DamagedError):
                raise DamagedError(f"{error}. Copy it again, or use another checkpoint.") from None
            raise
        with self._lock:
            if block in self._blocks:
                self._blocks[block] = content
        return content


def _blocks(part: slice) -> range:
    """Return the numbers of the blocks that hold `part`."""
    return range(part.start // BLOCK_BYTES, -(-part.stop // BLOCK_BYTES))
