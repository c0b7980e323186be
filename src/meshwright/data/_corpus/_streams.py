"""A file as a stream of its bytes, wherever it lies, decompressed if need be.

Anybody may have made a file. So one request for bytes never makes more than `LONGEST` of them, also where a
few compressed bytes stand for very many.

bzip2 and xz allow several compressed streams one after the other in a file. Python's `BZ2File` and `LZMAFile`
pass over what follows the first stream if it is none: where a bit of the second one's header is wrong, they
end there without an error, and the rest is lost. `Concatenated` refuses such a file.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Protocol, cast

from meshwright.base._internal import ObjectBytes, ObjectPath, Part, import_extra, location, open_file
from meshwright.data._corpus._files import File
from meshwright.errors import InputError, MeshwrightError

LONGEST = 1 << 26
"""The most bytes of one document. Tokenizing it takes about a hundred times as much memory."""
_BLOCK = 1 << 20
_OF_DAMAGE = (OSError, EOFError, ValueError, ArithmeticError, LookupError, zlib.error, lzma.LZMAError)


class _OfStore(io.RawIOBase):
    """An object of a store as a file that can be read anywhere."""

    def __init__(self, path: ObjectPath, nbytes: int):
        self._bytes, self._nbytes, self._at = ObjectBytes([Part(path, 0, nbytes)]), nbytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._nbytes}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        stop = min(self._at + len(buffer), self._nbytes)
        if stop <= self._at:
            return 0
        buffer[: stop - self._at] = self._bytes[self._at : stop].data
        count, self._at = stop - self._at, stop
        return count


def opened(file: File) -> BinaryIO:
    """Return the bytes of a file as they lie in it."""
    path = location(file.place)
    if isinstance(path, ObjectPath):
        return io.BufferedReader(_OfStore(path, file.nbytes), _BLOCK)
    try:
        return open_file(path)
    except OSError as error:
        raise InputError(f"{file.place} cannot be read: {error.strerror}.") from None


@contextlib.contextmanager
def decompressed(file: File) -> Iterator[BinaryIO]:
    """Yield the bytes of a file, decompressed, until the context is left."""
    with contextlib.closing(opened(file)) as raw:
        yield _OPENERS[file.compression](raw) if file.compression else raw


def _zstd(raw: BinaryIO) -> BinaryIO:
    arrow = pyarrow()
    return cast(BinaryIO, arrow.CompressedInputStream(arrow.PythonFile(raw, mode="r"), "zstd"))


_OPENERS: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    "gz": lambda raw: cast(BinaryIO, gzip.GzipFile(fileobj=raw)),
    "bz2": lambda raw: io.BufferedReader(Concatenated(raw, bz2.BZ2Decompressor), _BLOCK),
    "xz": lambda raw: io.BufferedReader(Concatenated(raw, lzma.LZMADecompressor, padding=b"\0"), _BLOCK),
    "zst": _zstd,
}


def pyarrow(module: str = "pyarrow") -> Any:
    """Return pyarrow, or a module of it."""
    return import_extra(module, extra="text", needed_by="a file of Parquet, Arrow or zstd")


@contextlib.contextmanager
def naming(file: File, where: Callable[[], str]) -> Iterator[None]:
    """Turn errors of decompressors and parsers into an `InputError` that names the file and the place."""
    try:
        yield
    except MeshwrightError:
        raise
    except Exception as error:
        if not isinstance(error, _OF_DAMAGE) and not type(error).__module__.startswith("pyarrow"):
            raise
        lines = str(error).strip().splitlines()
        raise InputError(
            f"{file.place} is damaged, or not what its name says, at {where()}: "
            f"{lines[0] if lines else type(error).__name__:.200}\n  Make or copy it again, or leave it out."
        ) from None


_PIECE = 1 << 18


class Decompressor(Protocol):
    """A decompressor of one stream: `bz2.BZ2Decompressor`, `lzma.LZMADecompressor`."""

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
            elif not (data := self._raw.read(_PIECE)):
                raise EOFError("it ends in the middle of a compressed stream")
            if content := self._stream.decompress(data, len(buffer)):
                buffer[: len(content)] = content
                return len(content)

    def _behind(self) -> bytes:
        """Return some of what is behind a stream, without padding; nothing at the end."""
        data, passed = self._stream.unused_data, 0
        while True:
            rest = data.lstrip(self._padding) if self._padding else data
            passed += len(data) - len(rest)
            if not rest and (data := self._raw.read(_PIECE)):
                continue
            # xz pads with multiples of four zero bytes.
            if passed % 4:
                raise EOFError("it has more bytes behind a compressed stream than belong there")
            return rest
