"""Leaves of a state that are saved under other names or left out, and the reverse when they are restored."""

from collections.abc import Mapping
from typing import Any

from meshwright.base._internal import tree
from meshwright.checkpoints._arrays._export_input import Names, chosen
from meshwright.checkpoints._arrays._source import Source
from meshwright.checkpoints._arrays._transforms import with_arrays


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
    return {name: each.array for name, each in chosen(leaves, names).items()}


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
