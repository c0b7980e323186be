"""Sources made of other sources.

A transformation is a function of a source that returns a source. Most are a line of Python on the
named arrays, `as_source({new_name: array, ...}, name)`, as nothing is read before it is restored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from meshwright import tree
from meshwright.arrays._cast import Casts, cast_dtypes, cast_leaf, cast_leaves, dtype_of
from meshwright.arrays._lazy import Index, LazyArray, in_memory
from meshwright.arrays._source import Source, Spelling, names_below, spelling_of
from meshwright.errors import CheckpointError, nearest


def as_source(arrays: Mapping[str, LazyArray | np.ndarray | jax.Array], name: str) -> Source:
    """Return named arrays as a source; errors will call it `name`."""
    return Arrays(name, {key: x if isinstance(x, LazyArray) else in_memory(x) for key, x in arrays.items()})


def subtree(source: Source, prefix: str) -> Source:
    """Return the part of `source` under `prefix`, `params` or `params/layers/0`, named from there on.

    `prefix` is spelt as we spell names, whatever the format does.

    Raises:
      CheckpointError: There is nothing of that name.
    """
    arrays, spelling, below = source.arrays(), spelling_of(source), names_below(source, prefix)
    if not below:
        ours = map(spelling.ours, arrays)
        groups = {name[:end] for name in ours for end, letter in enumerate(name) if letter == "/"}
        close = nearest(prefix, sorted(groups))
        hint = f"did you mean {close}?" if close else f"there are {', '.join(sorted(groups)[:10]) or 'none'}."
        raise CheckpointError(f"{source} has no subtree {prefix}; {hint}")
    start = f"{prefix}/"
    empty = {name.removeprefix(start): x for name, x in empty_of(source).items() if name.startswith(start)}
    held = {rest: arrays[name] for rest, name in below.items()}
    return Arrays(f"{prefix} of {source}", held, empty, spelling)


def cast(source: Source, casts: Casts) -> Source:
    """Return `source` with arrays cast while they are read: pairs of a pattern for names and a dtype.

    The first pattern that matches decides. Numbers stay of their kind: a floating dtype casts
    floating arrays only, and leaves the others that its pattern matches as they are. Names are those of
    the source, or ours, where its format spells them otherwise.

    Raises:
      UsageError: A pattern casts nothing; when it is read, a number does not fit into its dtype.
    """
    return with_arrays(source, cast_leaves(source.arrays(), casts, spelling_of(source).ours))


def cast_back(source: Source, casts: Casts, target: tree.PyTree) -> Source:
    """Return `source` with what `casts` say in the dtypes of `target` again."""
    wanted, arrays = tree.named_leaves(target), source.arrays()
    names = cast_dtypes(wanted, casts).keys() & arrays.keys()
    back = {name: cast_leaf(name, arrays[name], dtype_of(wanted[name])) for name in names}
    return with_arrays(source, {**arrays, **back})


def with_arrays(source: Source, arrays: Mapping[str, LazyArray]) -> Source:
    """Return `source` with other arrays by names that are spelt as its own."""
    return Arrays(str(source), arrays, empty_of(source), spelling_of(source))


def empty_of(source: object) -> Mapping[str, Any]:
    """Return what a source holds, by name, that is no array: None, or {}; as far as it knows of such."""
    return getattr(source, "empty", {})


@dataclass(frozen=True)
class Arrays:
    """A source that is what it holds; `empty` is as `empty_of` returns it."""

    name: str
    held: Mapping[str, LazyArray]
    empty: Mapping[str, Any] = field(default_factory=dict)
    spelling: Spelling = field(default_factory=Spelling)

    def __str__(self) -> str:
        return self.name

    def arrays(self) -> Mapping[str, LazyArray]:
        """Return every array by name; nothing is read."""
        return self.held

    def read(self, name: str, index: Index, /) -> np.ndarray:
        """Return a part of one array."""
        return self.held[name].read(index)
