"""Pins: a file `PINNED` in a checkpoint's directory, which no retention policy then removes.

Any program or person may put it there, at any time. What it says is for people.
"""

from meshwright.checkpoint._directory import PINNED
from meshwright.checkpoint._format import MANIFEST
from meshwright.checkpoint._object_path import Directory, ObjectPath, location
from meshwright.errors import CheckpointError


def pin(path: str | Directory, note: str = "") -> None:
    """Keep the checkpoint at `path`, a step directory, until it is unpinned; `note` says why, or for whom.

    Raises:
      CheckpointError: There is no complete checkpoint at `path`; perhaps it has just been removed.
    """
    directory = location(path)
    mark = directory / PINNED
    try:
        if not (directory / MANIFEST).is_file():
            raise FileNotFoundError
        if isinstance(mark, ObjectPath):
            mark.put(f"{note}\n".encode())
        else:
            mark.write_text(f"{note}\n", encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{directory} is no complete checkpoint, so it cannot be pinned.") from None


def unpin(path: str | Directory) -> None:
    """Leave the checkpoint at `path` to the retention policy again, if it was pinned."""
    mark = location(path) / PINNED
    if mark.is_file():
        mark.unlink()


def is_pinned(path: str | Directory) -> bool:
    """Return whether the checkpoint at `path` is pinned; False also where there is none."""
    return (location(path) / PINNED).is_file()
