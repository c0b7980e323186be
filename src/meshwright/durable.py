"""Files that are there whole or not at all, also after a power cut."""

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file, durably, so that no reader ever sees a part of it: bytes, or pieces as they come."""
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("wb") as file:
        file.writelines([content] if isinstance(content, bytes) else content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def open_ordinary(path: Path, flags: int) -> int:
    """Open an ordinary file, as `os.open` does, and return its descriptor. A pipe is not waited for.

    Raises:
      OSError: it cannot be opened, or it is a link, a pipe or a device, which others may have put there.
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
    """Make the names in a directory durable: what was created, renamed or removed there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
