"""Durable, atomic writing of files: after a power cut a file is complete or does not exist."""

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file atomically, and flush it and its directory to the disk."""
    write_one_of_many(path, content)
    fsync_directory(path.parent)


def write_one_of_many(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file as `write_whole` does, but leave it to the caller to flush its directory.

    After a power cut before that, the file is complete, or is as it was before, or does not exist.
    """
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("wb") as file:
        file.writelines([content] if isinstance(content, bytes) else content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def open_ordinary(path: Path, flags: int) -> int:
    """Open an ordinary file, as `os.open` does, and return its descriptor. It does not wait for a pipe."""
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


def make_directory(path: Path) -> None:
    """Create a directory and its parents as needed, and flush the entries that lead to it.

    Those that exist are flushed, too: a process may have been killed after it created them. It ends at the
    root of the file system, or below a directory that this process may not change.
    """
    path.mkdir(parents=True, exist_ok=True)
    for parent in path.resolve().parents:
        if not os.access(parent, os.R_OK | os.W_OK):
            break
        fsync_directory(parent)
        if parent.is_mount():
            break


def fsync_directory(path: Path) -> None:
    """Flush a directory to the disk, so that a power cut cannot undo created, renamed or removed files."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
