"""The interface of readers, the checkpoint that they return, and directories whose entries are named by
steps.
"""

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping
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
    named_arrays: Mapping[str, LazyArray] = field(repr=False)
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
        return self.named_arrays

    def read(self, name: str, index: Index, /) -> np.ndarray:
        """Return a part of one array."""
        return self.named_arrays[name].read(index)


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


def opened(reader: Reader, path: Directory) -> Foreign:
    """Open a checkpoint by its reader, and treat unexpected errors of the reader as damage."""
    try:
        checkpoint = reader.open(path)
    except (RecursionError, ValueError, OverflowError, LookupError, TypeError) as error:
        if isinstance(error, MeshwrightError):
            raise
        problem = f"{type(error).__name__}: {error!s:.200}"
        raise DamagedError(f"{path} is damaged, or not {reader.name}: {problem}. Copy it again.") from error
    for name, array in checkpoint.named_arrays.items():
        # Damaged sizes are refused here, before anything allocates memory for them.
        nbytes = math.prod(max(1, size) for size in array.shape) * max(1, array.dtype.itemsize)
        if len(array.shape) > _MOST_DIMS or nbytes > _LARGEST:
            problem = f"{name} has the shape {list(array.shape)!s:.200}, which is not possible"
            raise DamagedError(f"{checkpoint.path} is damaged: {problem}. Copy it again.")
    return checkpoint


_NUMBERED = re.compile(r"(?:(?:checkpoint|ckpt|step)[_-]?)?([0-9]+)")

log = logging.getLogger("meshwright")


def step_of(name: str) -> int | None:
    """Return the step in a directory's name, such as `0000000800` or `checkpoint_800`; None without any."""
    match = _NUMBERED.fullmatch(name)
    return int(match[1]) if match else None


def steps_in(
    directory: Directory,
    is_step: Callable[[Directory], bool],
    number: Callable[[str], int | None] = step_of,
) -> list[Directory]:
    """Return the entries whose names have a `number` and that pass `is_step`, the lowest first.

    Of two with the same number, the longer name comes last: a program that pads with zeros pads all names.
    """
    if not directory.is_dir():
        return []
    numbered = [
        (step, len(entry.name), entry)
        for entry in directory.iterdir()
        if (step := number(entry.name)) is not None
    ]
    return [entry for *_, entry in sorted(numbered, key=lambda item: item[:2]) if is_step(entry)]


def complete_in(
    steps: Iterable[Directory],
    is_complete: Callable[[Directory], bool],
    number: Callable[[str], int | None] = step_of,
) -> dict[int, Directory]:
    """Return the complete steps, by number, the lowest first."""
    whole = ((number(step.name), step) for step in steps if is_complete(step))
    return {step: path for step, path in whole if step is not None}


def newest(steps: list[Directory], is_complete: Callable[[Directory], bool]) -> Directory:
    """Return the last complete step, and warn if later ones are not complete; the last one if none is."""
    complete = next((step for step in reversed(steps) if is_complete(step)), steps[-1])
    if complete != steps[-1]:
        log.warning("%s is not complete; the newest that is: %s", steps[-1], complete.name)
    return complete
