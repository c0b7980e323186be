"""gzip and zlib. With isal, writing is 14 times and reading twice as fast as with Python's zlib."""

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

try:
    from isal.isal_zlib import compressobj, decompressobj
except ImportError:  # isal has no wheels for some machines
    from zlib import compressobj, decompressobj

_GZIP, _EITHER = zlib.MAX_WBITS | 16, zlib.MAX_WBITS | 32
_PIECE = 1 << 20  # bytes processed at a time, so that large data is not copied as a whole


def gzipped(data: memoryview, level: int) -> Iterator[bytes]:
    """Yield the pieces of a gzip file with this content."""
    stream = compressobj(level, wbits=_GZIP)
    for start in range(0, len(data), _PIECE):
        yield stream.compress(data[start : start + _PIECE])
    yield stream.flush()


def inflated(data: bytes, nbytes: int) -> np.ndarray:
    """Return the content of gzip or zlib data, which must be of size `nbytes`."""
    stream, room, done = decompressobj(wbits=_EITHER), np.empty(nbytes, np.uint8), 0
    try:
        for piece in _pieces(stream, memoryview(data)):
            if done + len(piece) > nbytes:
                raise ValueError(f"it holds more than {nbytes} bytes of values")
            room[done : done + len(piece)] = memoryview(piece)
            done += len(piece)
    except Exception as error:  # the errors of isal and zlib have no other common class
        raise ValueError(str(error)) from None
    if not stream.eof or stream.unused_data:
        raise ValueError("it is cut off, or other data follows it")
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
