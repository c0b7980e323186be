"""gzip and zlib: with isal 14 times as fast to write, and half as long to read, as with Python's zlib."""

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

try:
    from isal.isal_zlib import compressobj, decompressobj
except ImportError:  # it has no wheels for some machines
    from zlib import compressobj, decompressobj

_GZIP, _EITHER = zlib.MAX_WBITS | 16, zlib.MAX_WBITS | 32
_PIECE = 1 << 20  # bytes taken or made at a time, so that no second copy of large data is held


def gzipped(data: memoryview, level: int) -> Iterator[bytes]:
    """Yield a gzip file of a buffer of bytes, piece by piece."""
    stream = compressobj(level, wbits=_GZIP)
    for start in range(0, len(data), _PIECE):
        yield stream.compress(data[start : start + _PIECE])
    yield stream.flush()


def inflated(data: bytes, nbytes: int) -> np.ndarray:
    """Return what is in data of gzip or zlib: that many bytes.

    Raises:
      ValueError: It is damaged, or not all of it is there, or something follows it, or it is more or less.
    """
    stream, room, done = decompressobj(wbits=_EITHER), np.empty(nbytes, np.uint8), 0
    try:
        for piece in _pieces(stream, memoryview(data)):
            if done + len(piece) > nbytes:
                raise ValueError(f"it holds more than {nbytes} bytes of values")
            room[done : done + len(piece)] = memoryview(piece)
            done += len(piece)
    except Exception as error:  # isal's errors and zlib's have nothing else in common
        raise ValueError(str(error)) from None
    if not stream.eof or stream.unused_data:
        raise ValueError("it ends before its end, or goes on behind it")
    if done < nbytes:
        raise ValueError(f"it holds {done} bytes of values instead of {nbytes}")
    return room


def _pieces(stream: Any, data: memoryview) -> Iterator[bytes]:
    for start in range(0, len(data), _PIECE):
        rest: Any = data[start : start + _PIECE]
        while len(piece := stream.decompress(rest, _PIECE)) == _PIECE:
            yield piece
            rest = stream.unconsumed_tail
        yield piece
