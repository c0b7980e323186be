"""Files that are there whole or not at all, also after a power cut."""

import os
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


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable: what was created, renamed or removed there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
