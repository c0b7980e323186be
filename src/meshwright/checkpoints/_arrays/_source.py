"""Sources: named arrays that can be read in parts, opened checkpoints among them, and the spelling of names.

A leaf's name is its keys joined by slashes, `params/w`. Some formats join the keys by dots (safetensors) or
by nothing (seqax), and then a name cannot always be split again. So names stay as they are when a checkpoint
is opened. A source has a `Spelling`, by which a leaf is found under its Meshwright name, and every source
derived from it keeps that.

A transformation is a function from a source to a source: a subtree, a cast. Most need one line of Python on
the named arrays, `as_source({new_name: array, ...}, name)`, because no values are read before they are
restored.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np

from meshwright.base._internal import Directory, mesh_text, size_text, tree
from meshwright.checkpoints._arrays._cast import Casts, cast_dtypes, cast_leaf, cast_leaves, dtype_of
from meshwright.checkpoints._arrays._lazy import Index, LazyArray, in_memory
from meshwright.errors import CheckpointError, did_you_mean, listed


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
    stored_as = {}
    for name in names:
        several = alike.get(folded(name), ())
        stored_as[name] = several[0] if name not in stored and len(several) == 1 else name
    ours: dict[str, str] = {}
    for name, theirs in stored_as.items():
        if ours.setdefault(theirs, name) != name:
            raise CheckpointError(
                f"{source} cannot tell {ours[theirs]} and {name} apart: its format stores both as "
                f"{theirs!r}. Rename one of them."
            )
    return stored_as


def names_below(source: Any, prefix: str) -> dict[str, str]:
    """Return the names in `source` that begin with the Meshwright name `prefix`, by the rest after it.

    If the format joins keys by nothing, this includes every name that begins with the same letters.
    """
    folded, plain = spelling_of(source).folded, f"{prefix}/"
    spelt = folded(plain)
    names = {}
    for name in source.arrays():
        if name.startswith(plain):
            names[name.removeprefix(plain)] = name
        elif "/" not in name and (joined := folded(name)).startswith(spelt) and joined != spelt:
            names[joined.removeprefix(spelt)] = name
    return names


def described(opened: Opened) -> str:
    """Return one line about a checkpoint: format, path, step, arrays, and the mesh that it was saved from."""
    mesh = opened.writer.get("mesh") if isinstance(opened.writer, Mapping) else None
    facts = [
        *([] if opened.step is None else [f"step {opened.step}"]),
        size_text(list(opened.arrays().values())),
        *([f"saved on mesh {mesh_text(mesh)}"] if isinstance(mesh, Mapping) and mesh else []),
    ]
    return f"<{opened.format} checkpoint {opened.path}: {', '.join(facts)}>"


def as_source(arrays: Mapping[str, LazyArray | np.ndarray | jax.Array], name: str) -> Source:
    """Return named arrays as a source.

    Args:
      arrays: Arrays in memory, on devices or lazy, by name.
      name: The name that errors call the source by.

    Example:
      >>> source = mw.checkpoints.as_source({"params/w": np.ones(3)}, "the source")
      >>> list(source.arrays())
      ['params/w']
    """
    return Arrays(name, {key: x if isinstance(x, LazyArray) else in_memory(x) for key, x in arrays.items()})


def subtree(source: Source, prefix: str) -> Source:
    """Return the arrays of `source` below `prefix`, with the prefix removed from their names.

    Args:
      source: The source to take a part of.
      prefix: A Meshwright name, whatever the format: `params` or `params/layers/0`.

    Raises:
      CheckpointError: No array lies below `prefix`.

    Example:
      >>> source = mw.checkpoints.as_source({"params/w": np.ones(3), "step": np.array(7)}, "the source")
      >>> list(mw.checkpoints.subtree(source, "params").arrays())
      ['w']
    """
    arrays, spelling, below = source.arrays(), spelling_of(source), names_below(source, prefix)
    if not below:
        ours = map(spelling.ours, arrays)
        groups = {name[:end] for name in ours for end, letter in enumerate(name) if letter == "/"}
        hint = did_you_mean(prefix, sorted(groups)) or f" There are {listed(sorted(groups), 10) or 'none'}."
        raise CheckpointError(f"{source} has no arrays below {prefix}/.{hint}")
    start = f"{prefix}/"
    empty = {name.removeprefix(start): x for name, x in empty_of(source).items() if name.startswith(start)}
    named_arrays = {rest: arrays[name] for rest, name in below.items()}
    return Arrays(f"{prefix} of {source}", named_arrays, empty, spelling)


def cast(source: Source, casts: Casts) -> Source:
    """Return `source` with some arrays cast while they are read.

    Args:
      source: The source to read from.
      casts: Pairs of a pattern for names and a dtype; the first pattern that matches decides. A pattern may
        match the name in the source or the Meshwright name. A floating-point dtype casts floating-point
        arrays only, and leaves others that its pattern matches as they are; likewise for integers.

    Raises:
      UsageError: A pattern casts nothing; or, while reading, a value does not fit into its dtype.

    Example:
      >>> source = mw.checkpoints.as_source({"w": np.ones(3, np.float32)}, "the source")
      >>> mw.checkpoints.cast(source, [(".*", "bfloat16")]).arrays()["w"].dtype
      dtype(bfloat16)
    """
    return with_arrays(source, cast_leaves(source.arrays(), casts, spelling_of(source).ours))


def cast_back(source: Source, casts: Casts, target: tree.PyTree) -> Source:
    """Return a checkpoint that was saved with `casts`, with these arrays in the dtypes of `target` again."""
    leaves, arrays = tree.named_leaves(target), source.arrays()
    names = cast_dtypes(leaves, casts).keys() & arrays.keys()
    back = {name: cast_leaf(name, arrays[name], dtype_of(leaves[name])) for name in names}
    return with_arrays(source, {**arrays, **back})


def with_arrays(source: Source, arrays: Mapping[str, LazyArray]) -> Source:
    """Return `source` with its arrays replaced; the new names have the same spelling."""
    return Arrays(str(source), arrays, empty_of(source), spelling_of(source))


def empty_of(source: object) -> Mapping[str, Any]:
    """Return the entries of a source that are no arrays, None or {}, by name; {} if it knows of none."""
    return getattr(source, "empty", {})


@dataclass(frozen=True)
class Arrays:
    """A source made of given lazy arrays; `as_source` is the simplest way to make one."""

    name: str
    """The name that errors call it by."""
    named_arrays: Mapping[str, LazyArray]
    """The arrays by name."""
    empty: Mapping[str, Any] = field(default_factory=dict)
    """Entries of its tree that are no arrays, None or {}, by name."""
    spelling: Spelling = field(default_factory=Spelling)
    """The way in which its names are written."""

    def __str__(self) -> str:
        return self.name

    def arrays(self) -> Mapping[str, LazyArray]:
        """Return every array by name; nothing is read."""
        return self.named_arrays

    def read(self, name: str, index: Index, /) -> np.ndarray:
        """Return a part of one array."""
        return self.named_arrays[name].read(index)
