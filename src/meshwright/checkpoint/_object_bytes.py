"""The bytes of a file in an object store, sliced like those of a file that is mapped into memory."""

import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from meshwright.checkpoint._kvstore import telling
from meshwright.checkpoint._object_path import PIECE_BYTES, ObjectPath
from meshwright.errors import CheckpointError

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
        self._path, self._nbytes = path, nbytes
        self._blocks: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, part: slice) -> np.ndarray:
        """Return the bytes of `part`, a slice with both ends.

        Raises:
          CheckpointError: They are not there.
        """
        out = np.empty(part.stop - part.start, np.uint8)
        blocks = range(part.start // BLOCK_BYTES, -(-part.stop // BLOCK_BYTES))
        for block in blocks:
            for each in blocks[block - blocks.start :][:_AHEAD]:
                self._request(each)
            start = block * BLOCK_BYTES
            first, last = max(part.start, start), min(part.stop, start + BLOCK_BYTES)
            content = self._content(block)
            out[first - part.start : last - part.start] = content[first - start : last - start]
        return out

    def _request(self, block: int) -> Any:
        with self._lock:
            if block not in self._blocks:
                self._blocks[block] = self._read(block)
                if len(self._blocks) > _KEPT:
                    self._blocks.popitem(last=False)
            self._blocks.move_to_end(block)
            return self._blocks[block]

    def _read(self, block: int) -> Any:
        start = block * BLOCK_BYTES
        within = start % PIECE_BYTES if self._nbytes > PIECE_BYTES else start
        end = within + min(BLOCK_BYTES, self._nbytes - start)
        return self._path.store.read(self._path.piece(start, self._nbytes), byte_range=slice(within, end))

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
        try:
            with telling(f"read {self._path}"):
                found = requested.result()
        except Exception as error:
            with self._lock:
                self._blocks.pop(block, None)  # to be asked for again
            if "OUT_OF_RANGE" in str(error):
                raise CheckpointError(f"{self._path} is truncated: {error}") from None
            raise
        if found.state == "missing":
            raise CheckpointError(f"{self._path} is damaged: the object is missing.")
        return found.value
