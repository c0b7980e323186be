"""Named arrays that can be read in parts, and checkpoints that are opened as such."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from meshwright.arrays._lazy import Index, LazyArray
from meshwright.shown import mesh_text, size_text
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


def described(opened: Opened) -> str:
    """Return a checkpoint in a line: format and place, step, arrays, and the mesh that it was saved from."""
    mesh = opened.writer.get("mesh") if isinstance(opened.writer, Mapping) else None
    facts = [
        *([] if opened.step is None else [f"step {opened.step}"]),
        size_text(list(opened.arrays().values())),
        *([f"saved on mesh {mesh_text(mesh)}"] if isinstance(mesh, Mapping) and mesh else []),
    ]
    return f"<{opened.format} checkpoint {opened.path}: {', '.join(facts)}>"
