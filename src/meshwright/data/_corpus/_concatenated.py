"""Compressed streams that lie one after the other in a file, as bzip2 and xz allow.

Python's `BZ2File` and `LZMAFile` pass over what follows the first stream if it is none: where a bit of the
second one's header is wrong, they end there without an error, and the rest is lost.
"""

import io
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol

_BLOCK = 1 << 18


class Decompressor(Protocol):
    """What decompresses one stream: `bz2.BZ2Decompressor`, `lzma.LZMADecompressor`."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class Concatenated(io.RawIOBase):
    """The content of all streams of a file."""

    def __init__(self, raw: BinaryIO, new: Callable[[], Decompressor], padding: bytes = b""):
        self._raw, self._new, self._padding = raw, new, padding
        self._stream = new()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while True:
            if self._stream.eof:
                if not (data := self._behind()):
                    return 0
                self._stream = self._new()
            elif not self._stream.needs_input:
                data = b""
            elif not (data := self._raw.read(_BLOCK)):
                raise EOFError("it ends in the middle of a compressed stream")
            if found := self._stream.decompress(data, len(buffer)):
                buffer[: len(found)] = found
                return len(found)

    def _behind(self) -> bytes:
        """Return some of what is behind a stream, without padding; nothing at the end."""
        data, passed = self._stream.unused_data, 0
        while True:
            rest = data.lstrip(self._padding) if self._padding else data
            passed += len(data) - len(rest)
            if not rest and (data := self._raw.read(_BLOCK)):
                continue
            if passed % 4:
                raise EOFError("it has more bytes behind a compressed stream than belong there")
            return rest
