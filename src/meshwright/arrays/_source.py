"""Named arrays that can be read in parts, and checkpoints that are opened as such."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from meshwright.arrays._lazy import Index, LazyArray
from meshwright.storage import Directory


class Source(Protocol):
    """Named arrays that can be read in parts. `str` of it is what errors call it."""

    def arrays(self) -> Mapping[str, LazyArray]:
        """Return every array by name; nothing is read."""
        ...

    def read(self, name: str, index: Index, /) -> np.ndarray:
        """Return a part of one array, as `arrays()[name].read(index)` does."""
        ...


class Opened(Source, Protocol):
    """A checkpoint, opened where it lies; of what its format has no place for, None or nothing."""

    @property
    def path(self) -> Directory:
        """Return what was opened: a file, or the directory of one step."""
        ...

    @property
    def format(self) -> str:
        """Return what people call the format."""
        ...

    @property
    def step(self) -> int | None:
        """Return the step that was saved."""
        ...

    @property
    def writer(self) -> Any:
        """Return who saved it, as far as the files tell."""
        ...

    @property
    def extra(self) -> Any:
        """Return what was saved beside the arrays."""
        ...
