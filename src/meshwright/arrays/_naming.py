"""Other names in a checkpoint than in the state: leaves are renamed, or left out, at each save."""

from collections.abc import Mapping
from typing import Any

from meshwright import tree
from meshwright.arrays._exported import Names, chosen
from meshwright.arrays._source import Source
from meshwright.arrays._transforms import with_arrays


def renamed(leaves: Mapping[str, Any], names: Names | None) -> dict[str, Any]:
    """Return the leaves that are to be saved, by the names that they get.

    Raises:
      UsageError: There are none, or two get one name.
    """
    if names is None:
        return dict(leaves)
    return {name: each.array for name, each in chosen(leaves, names).items()}


def left_out(target: tree.PyTree, names: Names | None) -> set[str]:
    """Return which leaves of a state are not saved.

    Raises: as `renamed`.
    """
    leaves = tree.named_leaves(target)
    renamed(leaves, names)
    return set() if names is None else {name for name in leaves if names(name) is None}


def named_back(source: Source, names: Names | None, target: tree.PyTree) -> Source:
    """Return `source`, whose leaves have the names that they got, with those that they have in `target`."""
    if names is None:
        return source
    arrays = dict(source.arrays())
    saved = {name: names(name) for name in tree.leaf_names(target)}
    back = {name: arrays.pop(other) for name, other in saved.items() if other in arrays}
    return with_arrays(source, {**arrays, **back})
