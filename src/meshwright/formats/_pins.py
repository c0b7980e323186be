"""Pins: a file `PINNED` in a checkpoint's directory, which no retention policy then removes.

Any program or person may put it there, at any time. What it says is for people. T5X leaves a checkpoint with
such a file alone, too.
"""

import os
from pathlib import Path

from meshwright.checkpoint import MANIFEST, PINNED
from meshwright.durable import fsync_directory
from meshwright.errors import CheckpointError
from meshwright.formats._open import reader_of, steps_at
from meshwright.formats.readers import opened
from meshwright.storage import Directory, ObjectPath, location


def pin(path: str | Directory, note: str = "") -> None:
    """Keep the checkpoint at `path`, a step directory, until it is unpinned; `note` says why, or for whom.

    When it returns, it has been kept, whatever was about to be removed and whatever happens to the machine.

    Raises:
      CheckpointError: There is no complete checkpoint at `path`, perhaps as it has just been removed; or it
        is of a system that knows no pins.
    """
    directory = location(path)
    mark = directory / PINNED
    try:
        if not (directory / MANIFEST).is_file():
            _check_foreign(directory)
        if isinstance(mark, ObjectPath):
            mark.put(f"{note}\n".encode())
        else:
            _write_durably(mark, f"{note}\n")
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{directory} is no complete checkpoint, so it cannot be pinned.") from None


def _check_foreign(directory: Directory) -> None:
    """Raise if another system's checkpoint is not there, or would be removed in spite of a pin."""
    reader = reader_of(directory)
    if reader is None or steps_at(directory):
        raise FileNotFoundError
    if not reader.has_pins:
        raise CheckpointError(
            f"{directory} is a checkpoint of {reader.name}, which knows no pins. Copy it to where it is not "
            "removed, or make one of ours of it: `meshwright convert`."
        )
    opened(reader, directory)  # raises, if it is not complete


def _write_durably(mark: Path, text: str) -> None:
    """Write the mark where it protects from the first byte on; it must be found by its name afterwards."""
    opened = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with os.fdopen(opened, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fsync_directory(mark.parent)  # FileNotFoundError, if it was renamed for its removal in the meantime


def unpin(path: str | Directory) -> None:
    """Leave the checkpoint at `path` to the retention policy again, if it was pinned."""
    mark = location(path) / PINNED
    if mark.is_file():
        mark.unlink()


def is_pinned(path: str | Directory) -> bool:
    """Return whether the checkpoint at `path` is pinned; False also where there is none."""
    return (location(path) / PINNED).is_file()
