"""One name for one leaf, everywhere.

A leaf is called by its path, `params/layers/0/q`: in sharding rules, checkpoints, reports and
errors alike. `%` and `/` inside a key are written `%25` and `%2F`, so that two leaves never share
a name and a name can always be taken apart again.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

PyTree = Any


def leaf_names(tree: PyTree) -> list[str]:
    """Return the names of the leaves of `tree`, in JAX's order.

    A tree that is itself a leaf has the name `""`. Names within one tree are unique.
    """
    return [_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """Return `{name: leaf}` in JAX's order."""
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dictionaries whose leaves have these names: `{"a": {"b": 1}}` for `{"a/b": 1}`."""
    whole: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *above, last = (key.replace("%2F", "/").replace("%25", "%") for key in name.split("/"))
        inner = whole
        for key in above:
            inner = inner.setdefault(key, {})
        inner[last] = leaf
    return whole


def map_named(function: Callable[..., Any], tree: PyTree, *rest: PyTree) -> PyTree:
    """Return `tree` with each leaf replaced by `function(name, leaf, *leaves_of_rest)`."""
    return jax.tree_util.tree_map_with_path(lambda path, *leaves: function(_name(path), *leaves), tree, *rest)


def abstract(tree: PyTree) -> PyTree:
    """Return `tree` with arrays replaced by `ShapeDtypeStruct`s that keep their shardings."""

    def one(leaf: Any) -> jax.ShapeDtypeStruct:
        leaf = leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else np.asarray(leaf)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))

    return jax.tree.map(one, tree)


def nbytes(tree: PyTree) -> int:
    """Return the bytes of all leaves of `tree` (arrays or `ShapeDtypeStruct`s), sharding not counted."""
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def _name(path: tuple[Any, ...]) -> str:
    return "/".join(_key(key).replace("%", "%25").replace("/", "%2F") for key in path)


def _key(key: Any) -> str:
    match key:
        case DictKey() | FlattenedIndexKey():
            return str(key.key)
        case SequenceKey():
            return str(key.idx)
        case GetAttrKey():
            return key.name
        case _:
            return str(key).strip(".[]'\"")
