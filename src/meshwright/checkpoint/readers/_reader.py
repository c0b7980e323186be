"""What a reader is, and what it returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshwright.checkpoint._lazy import Index, LazyArray
from meshwright.checkpoint._object_path import Directory
from meshwright.checkpoint._spelling import Spelling


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
