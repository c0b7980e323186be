"""The bytes of a file in an object store, sliced like those of a file that is mapped into memory."""

import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from meshwright.checkpoint._object_file import OBJECT_BYTES, Part, parts_of
from meshwright.checkpoint._object_path import ObjectPath
from meshwright.errors import DamagedError, MeshwrightError

BLOCK_BYTES = 1 << 23
"""What is asked for at a time. One request takes about as long as the transfer of this."""

_AHEAD = 8
AHEAD_BYTES = _AHEAD * BLOCK_BYTES
"""What is asked for at once, where so much is wanted."""

_KEPT = 32  # 256 MB: small arrays lie side by side, and chunks are asked for by several devices


class ObjectBytes:
    """A file that is read in blocks, several at a time, of which the latest are kept."""

    def __init__(self, path: ObjectPath, nbytes: int):
        """Take a file of `nbytes`, which is not opened yet."""
        self._parts, self._nbytes = parts_of(path, nbytes), nbytes
        self._ends: list[Any] = [None] * len(self._parts)
        self._blocks: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, part: slice) -> np.ndarray:
        """Return the bytes of `part`, a slice with both ends.

        Raises:
          DamagedError: An object that holds some of them is missing, or of another size.
          MeshwrightError: The store does not answer.
        """
        out = np.empty(part.stop - part.start, np.uint8)
        blocks = _blocks(part)
        for block in blocks:
            for each in blocks[block - blocks.start :][:_AHEAD]:
                self._request(each)
            start = block * BLOCK_BYTES
            first, last = max(part.start, start), min(part.stop, start + BLOCK_BYTES)
            content = self._content(block)
            out[first - part.start : last - part.start] = content[first - start : last - start]
        return out

    def read_on(self, part: slice) -> np.ndarray:
        """Return the bytes of `part`, and ask for what follows: for one who reads all of the file in order.

        Raises: as slicing does.
        """
        for block in _blocks(slice(part.start, min(part.stop + AHEAD_BYTES, self._nbytes))):
            self._request(block)
        return self[part]

    def _request(self, block: int) -> Any:
        with self._lock:
            if block not in self._blocks:
                self._blocks[block] = self._asked_for(block)
                if len(self._blocks) > _KEPT:
                    self._blocks.popitem(last=False)
            self._blocks.move_to_end(block)
            return self._blocks[block]

    def _asked_for(self, block: int) -> Any:
        """Ask for a block and, if it is the first of its object, whether that ends where it should."""
        number, part, first = self._place(block)
        if self._ends[number] is None:
            self._ends[number] = part.request_beyond()
        return part.request(first, min(first + BLOCK_BYTES, part.nbytes))

    def _place(self, block: int) -> tuple[int, Part, int]:
        """Return the object that holds a block, its number, and where in it the block begins."""
        number = block * BLOCK_BYTES // OBJECT_BYTES if len(self._parts) > 1 else 0
        part = self._parts[number]
        return number, part, block * BLOCK_BYTES - part.offset

    def _content(self, block: int) -> np.ndarray:
        requested = self._request(block)
        if isinstance(requested, np.ndarray):
            return requested
        content = np.frombuffer(self._answer(block, requested), np.uint8)
        with self._lock:
            if block in self._blocks:  # each look at an answer copies it
                self._blocks[block] = content
        return content

    def _answer(self, block: int, requested: Any) -> bytes:
        number, part, _ = self._place(block)
        try:
            content = part.answer(requested)
            part.check_end(self._ends[number])
        except MeshwrightError as error:
            with self._lock:  # to be asked for again
                self._blocks.pop(block, None)
                self._ends[number] = part.request_beyond()
            if isinstance(error, DamagedError):
                raise DamagedError(f"{error}. Copy it again, or use another checkpoint.") from None
            raise
        return content


def _blocks(part: slice) -> range:
    """Return the numbers of the blocks that hold `part`."""
    return range(part.start // BLOCK_BYTES, -(-part.stop // BLOCK_BYTES))
