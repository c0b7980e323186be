"""One opened checkpoint, whatever wrote it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from meshwright.checkpoint._damage import incomplete
from meshwright.checkpoint._directory import aside, complete_steps, step_path, temporaries
from meshwright.checkpoint._format import MANIFEST, NativeSource
from meshwright.checkpoint._lazy import Index, LazyArray
from meshwright.checkpoint._object_path import Directory, location
from meshwright.errors import CheckpointError, DamagedError


class Source(Protocol):
    """Named arrays that can be read in parts. `str` of it is what errors call it."""

    def arrays(self) -> Mapping[str, LazyArray]:
        """Return every array by name; nothing is read."""
        ...

    def read(self, name: str, index: Index, /) -> np.ndarray:
        """Return a part of one array, as `arrays()[name].read(index)` does."""
        ...


def open_source(path: str | Directory, *, verify: bool = True) -> NativeSource:
    """Open a checkpoint: a step directory, or the newest in a directory of checkpoints, local or not.

    `verify` compares what is read with its checksums. Without it damage to the data goes unnoticed.
    Where the newest is damaged no older one is taken instead, as `Checkpoints.resume` does: the error
    says which there is.

    Raises:
      CheckpointError: There is no complete checkpoint, or its manifest is too new.
      DamagedError: Its manifest is damaged.
    """
    *older, newest = checkpoints_at(path)
    try:
        return NativeSource(newest, verify=verify)
    except DamagedError as error:
        raise DamagedError(f"{error}{_instead_of_it(older)}") from None


def checkpoint_directory(path: str | Directory) -> Directory:
    """Return the directory of one checkpoint: `path` itself, or the newest in it.

    Raises: as `checkpoints_at`.
    """
    return checkpoints_at(path)[-1]


def checkpoints_at(path: str | Directory) -> list[Directory]:
    """Return the directories of the checkpoint at `path`, or of those in it, the oldest first.

    Raises:
      CheckpointError: There is no complete checkpoint.
    """
    directory = location(path)
    if (directory / MANIFEST).is_file():
        return [directory]
    if steps := complete_steps(directory):
        return [step_path(directory, step) for step in steps]
    raise CheckpointError(f"{directory} {_what_instead(directory)}")


def _instead_of_it(others: Sequence[Directory]) -> str:
    """Say which other checkpoint there is, as far as can be seen without reading its data."""
    whole = next((path for path in reversed(others) if not incomplete(path)), None)
    if whole is None:
        return " No other in its directory is whole." if others else ""
    return (
        f"\n  The newest of the others that looks whole is {whole.name}: open_source({str(whole)!r}). "
        f"`meshwright verify {whole.parent}` reads all of them."
    )


def _what_instead(directory: Directory) -> str:
    """Say what `directory` is, as it is no checkpoint."""
    if not directory.is_dir():
        return "is not a directory." if directory.exists() else "does not exist."
    if damaged := aside(directory):
        return f"holds no complete checkpoint, only {damaged[-1]}, which was found damaged and set aside."
    half_written = "Either a save is still running (call `wait()` first) or its run was killed."
    if any(directory.glob("data-*.zarr.zip")):
        return f"has data files but no {MANIFEST}. {half_written}"
    if unfinished := temporaries(directory):
        return f"holds no complete checkpoint, only the unfinished {unfinished[-1].name}. {half_written}"
    found = ", ".join(sorted(entry.name for entry in directory.iterdir())[:5]) or "nothing"
    return f"is no checkpoint, nor are there any in it called step_00000800 and so on. It holds {found}."
