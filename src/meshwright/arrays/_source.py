"""Named arrays that can be read in parts, checkpoints that are opened as such, and how their names are spelt.

Formats join the keys of a leaf by dots, as safetensors, or by nothing, as seqax, and then its name cannot
always be taken apart again. So nothing is renamed when a checkpoint is opened. A source says how its names
and ours become alike, a wanted name is looked up by that, and whatever is made of the source keeps it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from meshwright.arrays._lazy import Index, LazyArray
from meshwright.errors import CheckpointError
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


@dataclass(frozen=True)
class Spelling:
    """How a format spells names; unless said otherwise, as we do."""

    folded: Callable[[str], str] = str
    """Returns what our name of a leaf and the format's name of it both become."""
    ours: Callable[[str], str] = str
    """Returns our name of one of the format's, as far as that can be told."""


def spelling_of(source: object) -> Spelling:
    """Return how a source spells names."""
    return getattr(source, "spelling", Spelling())


def stored_names(source: Any, names: Iterable[str]) -> dict[str, str]:
    """Return what `source` calls each leaf, by our name of it; where that is not there, our name.

    Of two that are spelt alike neither is guessed.

    Raises:
      CheckpointError: Two names cannot be told apart there.
    """
    stored, folded = source.arrays(), spelling_of(source).folded
    alike: dict[str, list[str]] = {}
    for name in stored:
        alike.setdefault(folded(name), []).append(name)
    found = {}
    for name in names:
        several = alike.get(folded(name), ())
        found[name] = several[0] if name not in stored and len(several) == 1 else name
    ours: dict[str, str] = {}
    for name, theirs in found.items():
        if ours.setdefault(theirs, name) != name:
            raise CheckpointError(f"{ours[theirs]} and {name} are one name, {theirs}, in {source}.")
    return found


def names_below(source: Any, prefix: str) -> dict[str, str]:
    """Return the names of `source` below `prefix`, one of ours, by what is left of them without it.

    Where keys are joined by nothing, all count that begin so.
    """
    folded, plain = spelling_of(source).folded, f"{prefix}/"
    spelt = folded(plain)
    found = {}
    for name in source.arrays():
        if name.startswith(plain):
            found[name.removeprefix(plain)] = name
        elif "/" not in name and (joined := folded(name)).startswith(spelt) and joined != spelt:
            found[joined.removeprefix(spelt)] = name
    return found


def described(opened: Opened) -> str:
    """Return a checkpoint in a line: format and place, step, arrays, and the mesh that it was saved from."""
    mesh = opened.writer.get("mesh") if isinstance(opened.writer, Mapping) else None
    facts = [
        *([] if opened.step is None else [f"step {opened.step}"]),
        size_text(list(opened.arrays().values())),
        *([f"saved on mesh {mesh_text(mesh)}"] if isinstance(mesh, Mapping) and mesh else []),
    ]
    return f"<{opened.format} checkpoint {opened.path}: {', '.join(facts)}>"
