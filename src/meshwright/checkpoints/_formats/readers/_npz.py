"""Reads NumPy's npz: a ZIP file with a `.npy` file for each array, compressed or not.

Before the first value of a member is returned, the whole member is compared with its CRC-32. After that, only
the bytes of a part are read if the member is not compressed. A compressed one is read from its beginning, or
from where the last read ended. NumPy writes dtypes that it does not know, such as bfloat16, as bytes without
a type, and they stay so, because the file does not name the dtype. Other members, and two of one name, are
refused: they would be passed over.

Source: numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
"""

import math
import struct
import zipfile
import zlib
from collections import Counter
from threading import Lock
from tokenize import TokenError
from typing import IO

import numpy as np

from meshwright.base._internal import Directory, crc32
from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._formats.readers._file import Bytes, File, head, raw_array
from meshwright.checkpoints._formats.readers._reader import Foreign, Reader
from meshwright.errors import CheckpointError, listed

_SUFFIX = ".npy"
_BLOCK = 1 << 20
"""Bytes read at a time while a checksum is computed."""
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError)
_ENCRYPTED, _METHODS = 1, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    # For field names that are not ASCII.
    (3, 0): np.lib.format.read_array_header_2_0,
}
_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""A member's local header: its signature, and the lengths of its name and of the extra field."""


def _recognises(path: Directory) -> bool:
    return _file(path) is not None


def _file(path: Directory) -> Directory | None:
    files = list(path.glob("*.npz")) if path.is_dir() else [path]
    return files[0] if len(files) == 1 and _begins_with_array(files[0]) else None


def _begins_with_array(file: Directory) -> bool:
    start = head(file, 1 << 10)
    if not start.startswith(b"PK\x03\x04") or len(start) < _LOCAL_HEADER.size:
        return False
    _, length, _ = _LOCAL_HEADER.unpack_from(start)
    return start[_LOCAL_HEADER.size :][:length].endswith(_SUFFIX.encode())


def _open(path: Directory) -> Foreign:
    archive_path = _file(path) or path
    file = File(archive_path)
    try:
        archive = zipfile.ZipFile(file.stream())
        members = [member for member in archive.infolist() if not member.is_dir()]
        _check_members(archive_path, [member.filename for member in members])
        arrays = {member.filename.removesuffix(_SUFFIX): _array(file, archive, member) for member in members}
    except (*_DAMAGE, ValueError, NotImplementedError, TokenError) as error:
        raise file.damaged(str(error)) from None
    return Foreign(archive_path, READER.name, arrays)


def _check_members(path: Directory, names: list[str]) -> None:
    others = [name for name in names if not name.endswith(_SUFFIX)]
    if several := others or [name for name, count in Counter(names).items() if count > 1]:
        reason = "which are no arrays" if others else "each several times"
        raise CheckpointError(
            f"{path} has {listed(several)}, {reason}. Take out what is not meant: `zip -d FILE NAME`, or "
            "write "
            "it anew by numpy.savez."
        )


def _array(file: File, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> LazyArray:
    if member.flag_bits & _ENCRYPTED or member.compress_type not in _METHODS:
        raise CheckpointError(
            f"{file.path}: {member.filename} is encrypted, or compressed in a way that NumPy does not use."
        )
    with archive.open(member) as npy:
        shape, is_fortran, dtype = _header(npy)
        start = npy.tell()
    if dtype.hasobject:
        raise CheckpointError(f"{file.path}: {member.filename} holds Python objects, which is not supported.")
    nbytes = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or start + nbytes != member.file_size:
        problem = f"has {member.file_size - start} bytes, but {dtype}{list(shape)} needs {nbytes}"
        raise file.damaged(f"{member.filename} {problem}")
    is_stored = member.compress_type == zipfile.ZIP_STORED
    content: Bytes = _Stored(file, member) if is_stored else _Compressed(file, archive, member)
    array = raw_array(content, start, shape[::-1] if is_fortran else shape, dtype)
    array = array.astype(dtype.newbyteorder("="))
    return array.transpose() if is_fortran else array


def _header(npy: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return the shape, whether the order is Fortran's, and the dtype."""
    version = np.lib.format.read_magic(npy)
    if version not in _HEADERS:
        raise ValueError(f"{npy.name} has format version {version}, which is unknown")
    try:
        return _HEADERS[version](npy)
    except (RecursionError, MemoryError):
        # Raised by Python's parser, which NumPy uses.
        raise ValueError(f"{npy.name} has a header that is nested too deeply") from None


def _data_offset(file: File, member: zipfile.ZipInfo) -> int:
    start = member.header_offset
    _, *lengths = _LOCAL_HEADER.unpack(bytes(file[start : start + _LOCAL_HEADER.size]))
    return start + _LOCAL_HEADER.size + sum(lengths)


class _Stored:
    """The bytes of a member that is not compressed."""

    def __init__(self, file: File, member: zipfile.ZipInfo):
        self._file, self._member = file, member
        self._offset = _data_offset(file, member)
        self._is_checked = False
        self._lock = Lock()

    def __getitem__(self, part: slice) -> np.ndarray:
        with self._lock:
            return self._read(part) if self._is_checked else self._checked(part)

    def _checked(self, part: slice) -> np.ndarray:
        """Return a part, after reading the whole member and comparing it with its CRC-32."""
        starts, crc = range(0, self._member.file_size, _BLOCK), 0
        collected = _Collected(part)
        for start in starts:
            block = self._read(slice(start, min(start + _BLOCK, self._member.file_size)))
            collected.take(start, block)
            crc = crc32(block, crc)
        if crc != self._member.CRC:
            wrong = f"the CRC-32 is {crc:08x} instead of {self._member.CRC:08x}"
            raise self._file.damaged(f"{self._member.filename}: {wrong}")
        self._is_checked = True
        return collected.room

    def _read(self, part: slice) -> np.ndarray:
        return self._file[self._offset + part.start : self._offset + part.stop]


class _Compressed:
    """The bytes of a compressed member. Reading forward is cheap; reading back starts from the beginning."""

    def __init__(self, file: File, archive: zipfile.ZipFile, member: zipfile.ZipInfo):
        self._file, self._archive, self._member = file, archive, member
        self._opened: IO[bytes] | None = None
        self._is_checked = False
        self._lock = Lock()

    def __getitem__(self, part: slice) -> np.ndarray:
        try:
            with self._lock:
                return self._read(part) if self._is_checked else self._checked(part)
        except _DAMAGE as error:
            raise self._file.damaged(f"{self._member.filename}: {error}") from None

    def _checked(self, part: slice) -> np.ndarray:
        """Return a part, after reading the whole member, at whose end `zipfile` compares the CRC-32."""
        collected, position = _Collected(part), 0
        with self._archive.open(self._member) as whole:
            while block := whole.read(_BLOCK):
                collected.take(position, np.frombuffer(block, np.uint8))
                position += len(block)
        if position < self._member.file_size:
            raise EOFError(f"it ends after {position} bytes of {self._member.file_size}")
        self._is_checked = True
        return collected.room

    def _read(self, part: slice) -> np.ndarray:
        self._opened = self._opened or self._archive.open(self._member)
        self._opened.seek(part.start)
        content = self._opened.read(part.stop - part.start)
        if len(content) < part.stop - part.start:
            raise EOFError(f"it ends before byte {part.stop}")
        return np.frombuffer(bytearray(content), np.uint8)


class _Collected:
    """A part that is collected while all of the bytes are read block by block."""

    def __init__(self, part: slice):
        self._part = part
        self.room = np.empty(part.stop - part.start, np.uint8)

    def take(self, start: int, block: np.ndarray) -> None:
        """Keep the overlap of the part with a block that begins at byte `start`."""
        first, last = max(start, self._part.start), min(start + len(block), self._part.stop)
        if first < last:
            self.room[first - self._part.start : last - self._part.start] = block[
                first - start : last - start
            ]


READER = Reader("npz", _recognises, _open)
