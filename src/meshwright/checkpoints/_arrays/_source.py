"""Sources: named arrays that can be read in parts, opened checkpoints among them, and the spelling of names.

A leaf's name is its keys joined by slashes, `params/w`. Some formats join the keys by dots (safetensors) or
by nothing (seqax), and then a name cannot always be split again. So names stay as they are when a checkpoint
is opened. A source has a `Spelling`, by which a leaf is found under its Meshwright name, and every source
derived from it keeps that.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from meshwright.base._internal import Directory, mesh_text, size_text
from meshwright.checkpoints._arrays._lazy import Index, LazyArray
from meshwright.errors import CheckpointError


class Source(Protocol):
    """Named arrays that can be read in parts. Errors call it by its `str`.

    Example:
      >>> source = mw.checkpoints.as_source({"params/w": np.zeros((2, 3))}, "the source")
      >>> str(source), source.arrays()["params/w"].shape
      ('the source', (2, 3))
    """

    def arrays(self) -> Mapping[str, LazyArray]:
        """Return all arrays by name; no values are read."""
        ...

    def read(self, name: str, index: Index, /) -> np.ndarray:
        """Return a part of one array, as `arrays()[name].read(index)` does.

        Args:
          name: The array's name.
          index: A slice of step 1 for each dimension.
        """
        ...


class Opened(Source, Protocol):
    """An opened checkpoint of any format. A property that the format has no place for is None or empty."""

    @property
    def path(self) -> Directory:
        """Return the file, or the directory of one step, that was opened."""
        ...

    @property
    def format(self) -> str:
        """Return the usual name of the format."""
        ...

    @property
    def step(self) -> int | None:
        """Return the step that was saved."""
        ...

    @property
    def writer(self) -> Any:
        """Return the program that saved it, as far as the files say."""
        ...

    @property
    def extra(self) -> Any:
        """Return the values that were saved beside the arrays."""
        ...


@dataclass(frozen=True)
class Spelling:
    """The way in which a format writes names. By default it is Meshwright's: keys joined by slashes."""

    folded: Callable[[str], str] = str
    """Returns a common form of a name: a leaf's Meshwright name and its name in the format have the same."""
    ours: Callable[[str], str] = str
    """Returns the Meshwright name of a name of the format, as far as it can be split into keys."""


def spelling_of(source: object) -> Spelling:
    """Return the spelling of a source; Meshwright's own, if it does not say."""
    return getattr(source, "spelling", Spelling())


def stored_names(source: Any, names: Iterable[str]) -> dict[str, str]:
    """Return the name in `source` for each Meshwright name; the same name, if there is none or more than
    one.
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
            raise CheckpointError(
                f"{source} cannot tell {ours[theirs]} and {name} apart: its format stores both as "
                f"{theirs!r}. Rename one of them."
            )
    return found


def names_below(source: Any, prefix: str) -> dict[str, str]:
    """Return the names in `source` that begin with the Meshwright name `prefix`, by the rest after it.

    If the format joins keys by nothing, this includes every name that begins with the same letters.
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
    """Return one line about a checkpoint: format, path, step, arrays, and the mesh that it was saved from."""
    mesh = opened.writer.get("mesh") if isinstance(opened.writer, Mapping) else None
    facts = [
        *([] if opened.step is None else [f"step {opened.step}"]),
        size_text(list(opened.arrays().values())),
        *([f"saved on mesh {mesh_text(mesh)}"] if isinstance(mesh, Mapping) and mesh else []),
    ]
    return f"<{opened.format} checkpoint {opened.path}: {', '.join(facts)}>"
