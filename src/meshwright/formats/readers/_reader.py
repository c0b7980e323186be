"""What a reader is, and what it returns."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshwright.arrays import Index, LazyArray, Spelling, described
from meshwright.errors import DamagedError, MeshwrightError
from meshwright.storage import Directory

_MOST_DIMS, _LARGEST = 64, 1 << 62  # NumPy's limits, in bytes


@dataclass(frozen=True)
class Foreign:
    """A checkpoint of another system, opened."""

    path: Directory
    """What was opened: a file, or the directory of one step."""
    format: str
    """What people call it: `safetensors`."""
    held: Mapping[str, LazyArray] = field(repr=False)
    step: int | None = None
    writer: Mapping[str, Any] = field(default_factory=dict)
    """What is known of who wrote it."""
    extra: Any = None
    """What else it holds that is no array."""
    empty: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Where its tree has no leaves, by name: None, or {} for an empty container."""
    spelling: Spelling = field(default=Spelling(), repr=False)
    """How its names compare with ours."""

    def __str__(self) -> str:
        """Return path and format, which is what errors call the checkpoint by."""
        return f"{self.path} ({self.format})"

    def __repr__(self) -> str:
        return described(self)

    def arrays(self) -> Mapping[str, LazyArray]:
        """Return every array by name; nothing is read."""
        return self.held

    def read(self, name: str, index: Index, /) -> np.ndarray:
        """Return a part of one array."""
        return self.held[name].read(index)


@dataclass(frozen=True)
class Reader:
    """How checkpoints of one format are told and opened."""

    name: str
    """The format, as people call it."""
    recognises: Callable[[Directory], bool]
    """Takes a file, a directory or what is not there, and says whether `open` is the one to ask.

    It goes by content, not by what the place is called, and says yes to what is damaged or half-written.
    """
    open: Callable[[Directory], Foreign]
    """Raises:
      CheckpointError: It is of this format, but not complete, or of an unknown version.
      DamagedError: A file is missing, ends too soon, or is not what it says.
      UsageError: A package that reads it is not installed.
    """
    steps: Callable[[Directory], Mapping[int, Directory]] = field(default=lambda _: {})
    """Returns where the complete checkpoints of a directory are, by step; none where it is one checkpoint."""
    has_pins: bool = False
    """Whether its system leaves a checkpoint with a file PINNED alone."""


def opened(reader: Reader, place: Directory) -> Foreign:
    """Open a place by its reader. What that raises of content that no program writes is damage, too.

    Raises: as `Reader.open`.
    """
    try:
        found = reader.open(place)
    except (RecursionError, ValueError, OverflowError, LookupError, TypeError) as error:
        if isinstance(error, MeshwrightError):
            raise
        said = f"{type(error).__name__}: {error!s:.200}"
        raise DamagedError(f"{place} is damaged, or no {reader.name}: {said}. Copy it again.") from error
    for name, array in found.held.items():
        if len(array.shape) > _MOST_DIMS or _too_large(array):
            said = f"{name} has the shape {list(array.shape)!s:.200}, which no array has"
            raise DamagedError(f"{found.path} is damaged: {said}. Copy it again.")
    return found


def _too_large(array: LazyArray) -> bool:
    return math.prod(max(1, size) for size in array.shape) * max(1, array.dtype.itemsize) > _LARGEST
