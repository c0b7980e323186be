"""One opened checkpoint, whatever wrote it."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from meshwright.checkpoint._directory import complete_steps, step_path, temporaries
from meshwright.checkpoint._format import MANIFEST, NativeSource
from meshwright.checkpoint._lazy import Index, LazyArray
from meshwright.checkpoint._object_path import Directory, location
from meshwright.errors import CheckpointError


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

    Raises:
      CheckpointError: There is no complete checkpoint, or its manifest is damaged or too new.
    """
    return NativeSource(checkpoint_directory(path), verify=verify)


def checkpoint_directory(path: str | Directory) -> Directory:
    """Return the directory of one checkpoint: `path` itself, or the newest in it.

    Raises:
      CheckpointError: There is no complete checkpoint.
    """
    directory = location(path)
    if (directory / MANIFEST).is_file():
        return directory
    if steps := complete_steps(directory):
        return step_path(directory, steps[-1])
    raise CheckpointError(f"{directory} {_what_instead(directory)}")


def _what_instead(directory: Directory) -> str:
    """Say what `directory` is, as it is no checkpoint."""
    if not directory.is_dir():
        return "is not a directory." if directory.exists() else "does not exist."
    half_written = "Either a save is still running (call `wait()` first) or its run was killed."
    if any(directory.glob("data-*.zarr.zip")):
        return f"has data files but no {MANIFEST}. {half_written}"
    if unfinished := temporaries(directory):
        return f"holds no complete checkpoint, only the unfinished {unfinished[-1].name}. {half_written}"
    found = ", ".join(sorted(entry.name for entry in directory.iterdir())[:5]) or "nothing"
    return f"is no checkpoint, nor are there any in it called step_00000800 and so on. It holds {found}."
