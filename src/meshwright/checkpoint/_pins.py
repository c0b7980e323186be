"""Pins: a file `PINNED` in a checkpoint's directory, which no retention policy then removes.

Any program or person may put it there, at any time. What it says is for people.
"""

from pathlib import Path

from meshwright.checkpoint._directory import PINNED, local_directory
from meshwright.checkpoint._format import MANIFEST
from meshwright.errors import CheckpointError


def pin(path: str | Path, note: str = "") -> None:
    """Keep the checkpoint at `path`, a step directory, until it is unpinned; `note` says why, or for whom.

    Raises:
      CheckpointError: There is no complete checkpoint at `path`; perhaps it has just been removed.
    """
    directory = local_directory(path)
    try:
        (directory / MANIFEST).stat()
        (directory / PINNED).write_text(f"{note}\n", encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{directory} is no complete checkpoint, so it cannot be pinned.") from None


def unpin(path: str | Path) -> None:
    """Leave the checkpoint at `path` to the retention policy again, if it was pinned."""
    (local_directory(path) / PINNED).unlink(missing_ok=True)


def is_pinned(path: str | Path) -> bool:
    """Return whether the checkpoint at `path` is pinned; False also where there is none."""
    return (local_directory(path) / PINNED).exists()
