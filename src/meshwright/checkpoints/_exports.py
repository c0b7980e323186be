"""Exports: the arrays to write under their new names, and a staging directory for the files.

A state, too, may be saved with other names or without some leaves; restoring finds the leaves again.

An export is written beside its destination, and moved there when it is complete:

    hf/
      .model.safetensors.unfinished/     if the process is killed, the next export removes it
        .lock, .lock.holder              locked by the process that writes here; the second file names it
        model.safetensors                is moved to hf/ when it is complete
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from meshwright.base._internal import local_path, tree
from meshwright.checkpoints import _directory
from meshwright.checkpoints._arrays._cast import is_key, type_name
from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._arrays._source import Source, as_source, with_arrays
from meshwright.errors import MeshwrightError, UsageError, listed

Names = Callable[[str], str | None]
"""A function from an array's Meshwright name to its name in the export, or to None, which leaves it out."""


class TreeSource:
    """A tree of arrays with the methods of an opened checkpoint."""

    def __init__(self, leaves: tree.PyTree):
        self._leaves, self.empty = tree.named_leaves(leaves), tree.empty_nodes(leaves)
        self._whole: tuple[str, np.ndarray] | None = None
        spread = [name for name, leaf in self._leaves.items() if _is_spread(leaf)]
        if spread:
            raise UsageError(
                f"cannot export arrays that are spread over several processes: {listed(spread)}. Save a "
                "checkpoint and export that: `export_safetensors(open_source(...), ...)`."
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
    """Return an opened checkpoint as it is, and a tree as a `TreeSource`."""
    has = (callable(getattr(tree_or_source, method, None)) for method in ("arrays", "read"))
    return tree_or_source if all(has) else TreeSource(tree_or_source)


def source_of(tree_or_source: tree.PyTree | Source, name: str = "the tree") -> Source:
    """Return an opened checkpoint as it is, and a tree as a `Source`.

    Reading any part of a tree's array copies the whole array to the host first.
    """
    source = readable(tree_or_source)
    if source is tree_or_source:
        return source
    arrays = source.arrays()
    if keys := [name for name, x in arrays.items() if is_key(x)]:
        raise UsageError(f"cannot export typed PRNG keys: {listed(keys)}. Give their `jax.random.key_data`.")
    lazy = {
        array_name: LazyArray(x.shape, np.dtype(x.dtype), partial(source.read, array_name))
        for array_name, x in arrays.items()
    }
    return as_source(lazy, name)


def local(path: str | Path) -> Path:
    """Return the absolute path of an export's destination."""
    return local_path(path, "Export to a disk, and copy the files.").absolute()


def _on_host(leaf: Any) -> np.ndarray:
    if not isinstance(leaf, jax.Array):
        return np.asarray(leaf)
    # Shard by shard: `np.asarray(leaf)` would cache a copy of the whole in the array.
    whole = np.empty(leaf.shape, leaf.dtype)
    for shard in leaf.addressable_shards:
        whole[shard.index] = shard.data
    return whole


def _is_spread(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated)


class Chosen(NamedTuple):
    """An array that an export writes."""

    name: str
    """Its name in the source."""
    array: Any
    """An object with its shape and dtype."""


def chosen(saved: Mapping[str, Any], names: Names) -> dict[str, Chosen]:
    """Return the arrays to write, by their new names."""
    arrays: dict[str, Chosen] = {}
    for name, array in saved.items():
        if (theirs := names(name)) is None:
            continue
        if theirs in arrays:
            raise UsageError(
                f"{arrays[theirs].name} and {name} would both be called {theirs}. Change `names`."
            )
        arrays[theirs] = Chosen(name, array)
    if not arrays:
        raise UsageError("there is nothing to write: `names` returned None for every array.")
    return arrays


def is_of_numpy(dtype: Any) -> bool:
    """Return whether `dtype` is NumPy's own; NumPy writes others, such as bfloat16, as bytes without a
    type.
    """
    return dtype.type.__module__ == "numpy" and dtype.kind in "biufc"


def refuse_dtypes(
    where: str, arrays: Mapping[str, Chosen], accepts: Callable[[Any], bool] = is_of_numpy
) -> None:
    """Raise an error if an export format lacks the dtype of an array."""
    unfit = [choice for choice in arrays.values() if not accepts(choice.array.dtype)]
    if unfit:
        named = listed(f"{choice.name} ({type_name(choice.array)})" for choice in unfit)
        raise UsageError(f"{where} cannot hold the dtypes of {named}. {_instead(unfit)}")


def _instead(unfit: Sequence[Chosen]) -> str:
    """Return advice for arrays whose dtype a format lacks."""
    num_keys = sum(is_key(choice.array) for choice in unfit)
    cast = "Cast them, with --dtype float32 or `mw.checkpoints.cast`, or leave them out."
    data = "PRNG keys cannot be cast: export their `jax.random.key_data`, or a checkpoint, which holds it."
    return " ".join([*([cast] if num_keys < len(unfit) else []), *([data] if num_keys else [])])


def renamed(leaves: Mapping[str, Any], names: Names | None) -> dict[str, Any]:
    """Return the leaves to save, by their names in the checkpoint.

    Args:
      leaves: All leaves of a state, by name.
      names: Returns the saved name of a leaf, or None, which leaves it out. None instead of a function keeps
        all names.

    Raises:
      UsageError: No leaf is left, or two get the same name.

    Example:
      >>> mw.checkpoints.renamed({"params/w": 1, "seed": 2}, lambda name: {"params/w": "weights"}.get(name))
      {'weights': 1}
    """
    if names is None:
        return dict(leaves)
    return {name: choice.array for name, choice in chosen(leaves, names).items()}


def left_out(target: tree.PyTree, names: Names | None) -> set[str]:
    """Return the names of the leaves of a state that are not saved."""
    leaves = tree.named_leaves(target)
    renamed(leaves, names)
    return set() if names is None else {name for name in leaves if names(name) is None}


def named_back(source: Source, names: Names | None, target: tree.PyTree) -> Source:
    """Return a checkpoint that was saved with `names`, under the names of the state again."""
    if names is None:
        return source
    arrays = dict(source.arrays())
    saved = {name: names(name) for name in tree.leaf_names(target)}
    back = {name: arrays.pop(other) for name, other in saved.items() if other in arrays}
    return with_arrays(source, {**arrays, **back})


UNFINISHED = ".unfinished"
"""The suffix of a directory that a save has not finished."""


@contextmanager
def staged(final: Path) -> Iterator[Path]:
    """Yield an empty directory on the disk of `final`, to write files in and rename them; then remove it."""
    directory = final.with_name(f".{final.name}{UNFINISHED}")
    with _locked(directory):
        try:
            _empty(directory)
            with errors_naming(final):
                yield directory
        finally:
            _empty(directory)


@contextmanager
def errors_naming(final: object) -> Iterator[None]:
    """Turn an `OSError` into an error that names the destination."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise MeshwrightError(
            f"{final} was not written: {error.strerror}{where}. Nothing is left of it. Remove the cause, or "
            "give another destination."
        ) from None


def _empty(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        elif not entry.name.startswith(_directory.LOCK):
            entry.unlink()


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Create a directory and lock it; at the end, remove the directory and the lock."""
    lock = _directory.lock_local(directory)
    try:
        yield
    finally:
        lock.remove()
