"""Durable, atomic writing of files: after a power cut a file is complete or does not exist."""

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file atomically and flush it to the disk.

    Args:
      path: The file. An existing one is replaced.
      content: The bytes of the file, or pieces of them that are made on demand.
    """
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("wb") as file:
        file.writelines([content] if isinstance(content, bytes) else content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def open_ordinary(path: Path, flags: int) -> int:
    """Open an ordinary file, as `os.open` does, and return its descriptor. It does not wait for a pipe.

    Args:
      path: The file.
      flags: The flags of `os.open`.

    Raises:
      OSError: It cannot be opened, or it is a link, a pipe or a device, which others may have put there.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _not_ordinary(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_ordinary(path)
    return descriptor


def _not_ordinary(path: Path) -> OSError:
    return OSError(errno.EINVAL, "is a link, a pipe or a device where an ordinary file belongs", str(path))


def fsync_directory(path: Path) -> None:
    """Flush a directory to the disk, so that a power cut cannot undo created, renamed or removed files."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
