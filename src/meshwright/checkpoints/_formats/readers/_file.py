"""Files of other systems' checkpoints, local or in an object store, read in parts."""

import io
import os
import weakref
from typing import Any

import numpy as np

from meshwright.base._internal import (
    Directory,
    ObjectBytes,
    ObjectPath,
    Part,
    check_depth,
    open_file,
    parse_json,
    read_each,
)
from meshwright.errors import DamagedError


class File:
    """A file whose bytes are read by slicing, also on several threads."""

    def __init__(self, path: Directory, nbytes: int | None = None):
        """Open the file; if `nbytes` is given, it must have this size."""
        self.path = path
        try:
            self.nbytes = _size(path, nbytes)
        except FileNotFoundError:
            raise DamagedError(f"{path} is missing. Copy it again.") from None
        if nbytes not in (None, self.nbytes):
            raise self.damaged(f"it has {self.nbytes} bytes, but should have {nbytes}")
        if isinstance(path, ObjectPath):
            self._bytes = ObjectBytes([Part(path, 0, self.nbytes)])
        else:
            with open_file(path) as file:
                self._bytes = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._bytes)

    def __getitem__(self, part: slice) -> np.ndarray:
        """Return a copy of the bytes of `part`, a slice with both ends."""
        if part.start == part.stop:  # of no rows, from a column on, it may be behind the last byte
            return np.empty(0, np.uint8)
        if part.start < 0:
            raise self.damaged(f"data should begin {-part.start} bytes before its start")
        if part.stop > self.nbytes:
            raise self.damaged(f"it ends at byte {self.nbytes}, but should have at least {part.stop} bytes")
        if isinstance(self._bytes, ObjectBytes):
            return self._bytes[part]
        return self._pread(self._bytes, part)

    def stream(self) -> io.RawIOBase:
        """Return the file as a seekable stream for one thread."""
        return _Stream(self)

    def damaged(self, how: str) -> DamagedError:
        """Return an error about damage to the file."""
        return DamagedError(f"{self.path} is damaged: {how}. Copy it again.")

    def _pread(self, file: int, part: slice) -> np.ndarray:
        room = np.empty(part.stop - part.start, np.uint8)
        done = 0
        while done < len(room):
            count = os.preadv(file, [room[done:].data], part.start + done)
            if not count:
                raise self.damaged("it became shorter while it was read")
            done += count
        return room


class _Stream(io.RawIOBase):
    def __init__(self, file: File):
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.nbytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, room: Any, /) -> int:
        content = self._file[self._at : max(self._at, min(self._at + len(room), self._file.nbytes))]
        room[: len(content)] = content.data
        self._at += len(content)
        return len(content)


def head(path: Directory, nbytes: int) -> bytes:
    """Return the first bytes of a file, fewer if it is shorter; none if it does not exist."""
    if isinstance(path, ObjectPath):
        found = path.answer_with_size(path.request(0, nbytes))
        return bytes(found[0]) if found else b""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(nbytes)


def read_json(path: Directory) -> Any:
    """Return the content of a JSON file."""
    try:
        found = parse_json(read_each([path])[0])
        check_depth(found)
        return found
    except ValueError as error:
        raise DamagedError(f"{path} is damaged: {error}. Copy it again.") from None


def read_document(path: Directory) -> dict[str, Any]:
    """Return the content of a JSON file that holds an object."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise DamagedError(f"{path} is damaged: it does not hold a JSON object. Copy it again.")
    return content


def _size(path: Directory, nbytes: int | None) -> int:
    if not isinstance(path, ObjectPath):
        return path.stat().st_size
    if nbytes is not None:  # the size is checked when a part is read
        return nbytes
    if (found := path.look()) is None:
        raise FileNotFoundError(str(path))
    return found.nbytes
