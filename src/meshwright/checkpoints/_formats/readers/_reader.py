"""The interface of readers, and the checkpoint that they return."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshwright.base._internal import Directory
from meshwright.checkpoints._arrays._lazy import Index, LazyArray
from meshwright.checkpoints._arrays._source import Spelling, described
from meshwright.errors import DamagedError, MeshwrightError

_MOST_DIMS, _LARGEST = 64, 1 << 62  # NumPy's limits, in bytes


@dataclass(frozen=True)
class Foreign:
    """An opened checkpoint of another system."""

    path: Directory
    """The file, or the directory of one step, that was opened."""
    format: str
    """The usual name of the format, `safetensors`."""
    held: Mapping[str, LazyArray] = field(repr=False)
    """The arrays by name."""
    step: int | None = None
    """The step that was saved; None if unknown."""
    writer: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the program that wrote it."""
    extra: Any = None
    """Values in the checkpoint that are not arrays."""
    empty: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Entries of its tree without leaves, by name: None, or {} for an empty container."""
    spelling: Spelling = field(default=Spelling(), repr=False)
    """The way in which the format writes names."""

    def __str__(self) -> str:
        """Return the path and the format, by which errors call the checkpoint."""
        return f"{self.path} ({self.format})"

    def __repr__(self) -> str:
        return described(self)

    def arrays(self) -> Mapping[str, LazyArray]:
        """Return all arrays by name; no values are read."""
        return self.held

    def read(self, name: str, index: Index, /) -> np.ndarray:
        """Return a part of one array."""
        return self.held[name].read(index)


@dataclass(frozen=True)
class Reader:
    """A checkpoint format: functions that recognise and open its checkpoints."""

    name: str
    """The usual name of the format."""
    recognises: Callable[[Directory], bool]
    """Returns whether a path, which need not exist, holds a checkpoint of this format.

    It looks at the content, not at the name, and returns True also for a damaged or incomplete checkpoint.
    """
    open: Callable[[Directory], Foreign]
    """Opens a checkpoint, or the newest in a directory.

    Raises:
      CheckpointError: It is of this format, but not complete, or of an unknown version.
      DamagedError: A file is missing, truncated or damaged.
      UsageError: A package that reads it is not installed.
    """
    steps: Callable[[Directory], Mapping[int, Directory]] = field(default=lambda _: {})
    """Returns the paths of the complete checkpoints in a directory, by step; {} for a single checkpoint."""
    has_pins: bool = False
    """True if the system does not remove a checkpoint with a file PINNED."""


def opened(reader: Reader, place: Directory) -> Foreign:
    """Open a checkpoint by its reader, and treat unexpected errors of the reader as damage."""
    try:
        found = reader.open(place)
    except (RecursionError, ValueError, OverflowError, LookupError, TypeError) as error:
        if isinstance(error, MeshwrightError):
            raise
        said = f"{type(error).__name__}: {error!s:.200}"
        raise DamagedError(f"{place} is damaged, or not {reader.name}: {said}. Copy it again.") from error
    for name, array in found.held.items():
        if len(array.shape) > _MOST_DIMS or _too_large(array):
            said = f"{name} has the shape {list(array.shape)!s:.200}, which is not possible"
            raise DamagedError(f"{found.path} is damaged: {said}. Copy it again.")
    return found


def _too_large(array: LazyArray) -> bool:
    return math.prod(max(1, size) for size in array.shape) * max(1, array.dtype.itemsize) > _LARGEST
