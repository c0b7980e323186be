"""gzip and zlib: with isal 14 times as fast to write, and half as long to read, as with Python's zlib."""

import zlib
from typing import Any

try:
    from isal.isal_zlib import compressobj, decompressobj
except ImportError:  # it has no wheels for some machines
    from zlib import compressobj, decompressobj

_GZIP, _EITHER = zlib.MAX_WBITS | 16, zlib.MAX_WBITS | 32


def gzipped(data: Any, level: int) -> bytes:
    """Return a buffer as a gzip file."""
    stream = compressobj(level, wbits=_GZIP)
    return stream.compress(data) + stream.flush()


def inflated(data: bytes) -> bytes:
    """Return what is in data of gzip or zlib.

    Raises:
      ValueError: It is damaged, or not all of it is there, or something follows it.
    """
    stream = decompressobj(wbits=_EITHER)
    try:
        plain = stream.decompress(data)
    except Exception as error:  # isal's errors and zlib's have nothing else in common
        raise ValueError(str(error)) from None
    if not stream.eof or stream.unused_data:
        raise ValueError("it ends before its end, or goes on behind it")
    return plain
