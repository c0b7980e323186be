"""Pins: a checkpoint with a file `PINNED` in its directory is not removed by any retention policy.

Any program or person may create the file at any time; its text is for people. T5X respects it, too.
"""

import os
from contextlib import suppress
from pathlib import Path

from meshwright.base._internal import Directory, ObjectPath, fsync_directory, location
from meshwright.checkpoints._directory import PINNED
from meshwright.checkpoints._format._manifest import MANIFEST
from meshwright.checkpoints._formats._open import reader_of, steps_at
from meshwright.checkpoints._formats.readers._reader import opened
from meshwright.errors import CheckpointError


def pin(path: str | Directory, note: str = "") -> None:
    """Protect a checkpoint from removal until it is unpinned.

    When this returns, the checkpoint is safe, even from a removal in progress, and after a crash.

    Args:
      path: The step directory, local or in a store.
      note: A text for people: the reason, or who needs the checkpoint.

    Raises:
      CheckpointError: There is no complete checkpoint at `path`, perhaps because it has just been removed; or
        its system does not support pins.

    Example:
      >>> with mw.Checkpoints("run", keep=1) as checkpoints:
      ...     checkpoints.save(100, {"w": jnp.ones(3)})
      ...     checkpoints.wait()
      ...     mw.checkpoints.pin("run/step_00000100", "used in the paper")
      ...     checkpoints.save(200, {"w": jnp.ones(3)})
      ...     checkpoints.save(300, {"w": jnp.ones(3)})
      >>> mw.checkpoints._internal.complete_steps(mw.base._internal.location("run"))
      [100, 300]
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
        raise CheckpointError(f"cannot pin {directory}: it is not a complete checkpoint.") from None


def _check_foreign(directory: Directory) -> None:
    """Raise an error if another system's checkpoint does not exist, or if that system ignores pins."""
    reader = reader_of(directory)
    if reader is None or steps_at(directory):
        raise FileNotFoundError
    if not reader.has_pins:
        raise CheckpointError(
            f"{directory} is a checkpoint of {reader.name}, which has no pins. Copy it to another directory, "
            "or convert it by `meshwright convert`."
        )
    opened(reader, directory)  # raises if it is not complete


def _write_durably(mark: Path, text: str) -> None:
    """Write the file in place, as it protects from its first byte on, and flush it and the entries of both.

    A run may have been killed after it committed the checkpoint and before it flushed that.
    """
    opened = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with os.fdopen(opened, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fsync_directory(mark.parent)  # FileNotFoundError if a removal has renamed the directory meanwhile
    fsync_directory(mark.parent.parent)


def unpin(path: str | Directory) -> None:
    """Remove the pin of a checkpoint, if any, so that the retention policy may remove the checkpoint.

    Args:
      path: The step directory, local or in a store.

    Example:
      >>> with mw.Checkpoints("run") as checkpoints:
      ...     checkpoints.save(100, {"w": jnp.ones(3)})
      >>> mw.checkpoints.pin("run/step_00000100", "used in the paper")
      >>> mw.checkpoints.unpin("run/step_00000100")
      >>> mw.checkpoints.is_pinned("run/step_00000100")
      False
    """
    mark = location(path) / PINNED
    with suppress(FileNotFoundError):  # another process unpins it in this moment
        if mark.is_file():
            mark.unlink()


def is_pinned(path: str | Directory) -> bool:
    """Return whether a checkpoint is pinned; False if it does not exist.

    Args:
      path: The step directory, local or in a store.

    Example:
      >>> with mw.Checkpoints("run") as checkpoints:
      ...     checkpoints.save(100, {"w": jnp.ones(3)})
      >>> mw.checkpoints.pin("run/step_00000100", "used in the paper")
      >>> mw.checkpoints.is_pinned("run/step_00000100")
      True
    """
    return (location(path) / PINNED).is_file()
