"""One opened checkpoint, whatever wrote it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import jax
import numpy as np

from meshwright.checkpoint._directory import complete_steps, local_directory, step_path, temporaries
from meshwright.checkpoint._format import MANIFEST, NativeSource
from meshwright.errors import CheckpointError


class Source(Protocol):
    """Named arrays that can be read in parts."""

    def arrays(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        """Return shape and dtype of every array, by name."""
        ...

    def read(self, name: str, index: tuple[slice, ...], /) -> np.ndarray:
        """Return a part of one array: as many slices, of step 1, as it has dimensions."""
        ...

    def read_parts(self, name: str, indices: Sequence[tuple[slice, ...]], /) -> list[np.ndarray]:
        """Return several parts of one array; what they share in the file is to be read once."""
        ...


def open_source(path: str | Path) -> NativeSource:
    """Open a checkpoint: a step directory, or the newest in a directory of checkpoints.

    Raises:
      CheckpointError: There is no complete checkpoint, or its manifest is damaged or too new.
    """
    directory = local_directory(path)
    if (directory / MANIFEST).is_file():
        return NativeSource(directory)
    if steps := complete_steps(directory):
        return NativeSource(step_path(directory, steps[-1]))
    raise CheckpointError(f"{directory} {_what_instead(directory)}")


def _what_instead(directory: Path) -> str:
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
