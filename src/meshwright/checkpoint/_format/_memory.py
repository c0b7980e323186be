"""Memory for arrays that are read: large pieces, handed out in parts.

One large piece is had in a fraction of the time of many small ones, as the system clears it in large
pages. The parts are aligned so that XLA's CPU devices take them over as they are.
"""

import math
from collections.abc import Sequence
from threading import Lock

import numpy as np

from meshwright.checkpoint._format._zip import ALIGNMENT

_PIECE = 64 << 20


class Memory:
    """Memory of one reader."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._room = np.empty(0, np.uint8)

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Return an array, as `np.empty` does. Its memory is given back when its neighbours are, too."""
        return self._take(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)

    def _take(self, nbytes: int) -> np.ndarray:
        if nbytes >= _PIECE // 4:
            return _aligned(nbytes)
        with self._lock:
            if nbytes > len(self._room):
                self._room = _aligned(_PIECE)
            taken, self._room = self._room[:nbytes], self._room[-(-nbytes // ALIGNMENT) * ALIGNMENT :]
        return taken


def _aligned(nbytes: int) -> np.ndarray:
    room = np.empty(nbytes + ALIGNMENT, np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    return room[first : first + nbytes]
