"""What is exported: a checkpoint, or a tree read like one, and which of its arrays, under which names."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from meshwright import tree
from meshwright.arrays._keys import is_key, type_name
from meshwright.arrays._lazy import LazyArray
from meshwright.arrays._source import Source
from meshwright.arrays._transforms import as_source
from meshwright.errors import UsageError, listed
from meshwright.storage import local_path

Names = Callable[[str], str | None]
"""From our name of an array to the one that it gets, or to None, which leaves it out."""


class TreeSource:
    """A tree that is read like a checkpoint."""

    def __init__(self, leaves: tree.PyTree):
        self._leaves, self.empty = tree.named_leaves(leaves), tree.empty_nodes(leaves)
        self._whole: tuple[str, np.ndarray] | None = None
        spread = [name for name, leaf in self._leaves.items() if _is_spread(leaf)]
        if spread:
            raise UsageError(
                f"cannot export arrays that lie on several processes: {listed(spread)}. Save a checkpoint "
                "and export that: `export_safetensors(open_source(...), ...)`."
            )

    def arrays(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        """Return the shape and dtype of every array by name."""
        return {name: tree.abstract(leaf) for name, leaf in self._leaves.items()}

    def read(self, name: str, index: tuple[slice, ...], /) -> np.ndarray:
        """Return a part of one array."""
        if self._whole is None or self._whole[0] != name:
            self._whole = name, _on_host(self._leaves[name])
        return self._whole[1][index]


def readable(tree_or_source: tree.PyTree | Source) -> Source | TreeSource:
    """Return an opened checkpoint as it is, and a tree so that it is read like one.

    Raises:
      UsageError: An array of the tree lies on other processes too.
    """
    has = (callable(getattr(tree_or_source, method, None)) for method in ("arrays", "read"))
    return tree_or_source if all(has) else TreeSource(tree_or_source)


def source_of(tree_or_source: tree.PyTree | Source, name: str = "the tree") -> Source:
    """Return an opened checkpoint as it is, and a tree as a source, which errors will call `name`.

    Of the tree an array is copied when it is read, whole.

    Raises:
      UsageError: An array of the tree lies on other processes too, or holds keys.
    """
    source = readable(tree_or_source)
    if source is tree_or_source:
        return source
    arrays = source.arrays()
    if keys := [name for name, x in arrays.items() if is_key(x)]:
        raise UsageError(f"keys are no numbers: {listed(keys)}. Give their `jax.random.key_data`.")
    lazy = {
        each: LazyArray(x.shape, np.dtype(x.dtype), partial(source.read, each)) for each, x in arrays.items()
    }
    return as_source(lazy, name)


def local(place: str | Path) -> Path:
    """Return where something is to be written.

    Raises:
      UsageError: It is not on a disk of this machine.
    """
    return local_path(place, "Export to a disk, and copy the files.").absolute()


def _on_host(leaf: Any) -> np.ndarray:
    if not isinstance(leaf, jax.Array):
        return np.asarray(leaf)
    # Shard by shard, since an array keeps the copy of the whole that is made of it.
    whole = np.empty(leaf.shape, leaf.dtype)
    for shard in leaf.addressable_shards:
        whole[shard.index] = shard.data
    return whole


def _is_spread(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated)


class Chosen(NamedTuple):
    """An array that is to be written."""

    name: str
    """What the source calls it."""
    array: Any
    """Its shape and dtype."""


def chosen(saved: Mapping[str, Any], names: Names) -> dict[str, Chosen]:
    """Return the arrays that are to be written, by the names that they get.

    Raises:
      UsageError: There are none, or two get one name.
    """
    found: dict[str, Chosen] = {}
    for name, array in saved.items():
        if (theirs := names(name)) is None:
            continue
        if theirs in found:
            raise UsageError(f"{found[theirs].name} and {name} would both be called {theirs}.")
        found[theirs] = Chosen(name, array)
    if not found:
        raise UsageError("there is nothing to write: no array was chosen.")
    return found


def is_of_numpy(dtype: Any) -> bool:
    """Say whether NumPy alone knows a type of numbers: of others it would write bytes without one.

    Some of ml_dtypes's pose as a kind of NumPy's, and PRNG keys have none.
    """
    return dtype.type.__module__ == "numpy" and dtype.kind in "biufc"


def refuse_dtypes(
    where: str, arrays: Mapping[str, Chosen], accepts: Callable[[Any], bool] = is_of_numpy
) -> None:
    """Raise if a format does not have the dtype of an array.

    Raises:
      UsageError: It has not. The first of them are listed.
    """
    unfit = [each for each in arrays.values() if not accepts(each.array.dtype)]
    if unfit:
        named = listed(f"{each.name} ({type_name(each.array)})" for each in unfit)
        raise UsageError(f"{where} has no such dtypes: {named}. {_instead(unfit)}")


def _instead(unfit: Sequence[Chosen]) -> str:
    """Say what to do with arrays whose dtype a format does not have."""
    num_keys = sum(is_key(each.array) for each in unfit)
    cast = "Cast them, with --dtype float32 or `checkpoint.cast`, or leave them out."
    data = "Keys cannot be cast: export their `jax.random.key_data`, or a checkpoint, which holds that."
    return " ".join([*([cast] if num_keys < len(unfit) else []), *([data] if num_keys else [])])
