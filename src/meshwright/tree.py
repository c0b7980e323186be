"""One name for one leaf, everywhere.

A leaf is called by its path, `params/layers/0/q`: in sharding rules, checkpoints, reports and
errors alike. `%` and `/` inside a key are written `%25` and `%2F`, so that two leaves never share
a name and a name can always be taken apart again.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from meshwright.errors import InputError, UsageError

PyTree = Any
"""Nested dictionaries, tuples, lists and dataclasses of arrays, as JAX takes them."""
Path = tuple[Any, ...]
"""The keys of a leaf, as JAX has them."""


def leaf_names(tree: PyTree) -> list[str]:
    """Return the names of the leaves of `tree`, in JAX's order.

    A tree that is itself a leaf has the name `""`. Names within one tree are unique.

    Raises:
      UsageError: Two leaves would have one name, as keys of one class that read the same.
    """
    return _names([path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]])


def named_leaves(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> dict[str, Any]:
    """Return `{name: leaf}` in JAX's order; `is_leaf` as in `jax.tree.map`.

    Raises: as `leaf_names`.
    """
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf)[0]
    return dict(zip(_names([path for path, _ in leaves]), (leaf for _, leaf in leaves), strict=True))


def empty_nodes(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> dict[str, Any]:
    """Return what a tree holds where it has no leaves, by name: None, or {} for an empty container."""

    def is_empty(node: Any) -> bool:
        structure = jax.tree.structure(node)
        return structure.num_nodes == 1 and structure.num_leaves == 0

    found = named_leaves(tree, lambda node: is_empty(node) or (is_leaf is not None and is_leaf(node)))
    return {name: None if node is None else {} for name, node in found.items() if is_empty(node)}


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dictionaries whose leaves have these names: `{"a": {"b": 1}}` for `{"a/b": 1}`.

    Raises:
      InputError: One would lie below another.
    """
    whole: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *above, last = keys_of(name)
        inner = whole
        for key in above:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise _below_another(name)
        if last in inner:
            raise _below_another(name)
        inner[last] = leaf
    return whole


def _below_another(name: str) -> InputError:
    return InputError(
        f"{name} is a leaf above or below another leaf: these make no nested dictionaries. Take them by "
        "name, or call one otherwise."
    )


def name_of(keys: Iterable[str]) -> str:
    """Return the name of the leaf below these keys."""
    return "/".join(key.replace("%", "%25").replace("/", "%2F") for key in keys)


def keys_of(name: str) -> list[str]:
    """Return the keys above the leaf that is called so."""
    return [key.replace("%2F", "/").replace("%25", "%") for key in name.split("/")]


def map_named(function: Callable[..., Any], tree: PyTree, *rest: PyTree) -> PyTree:
    """Return `tree` with each leaf replaced by `function(name, leaf, *leaves_of_rest)`.

    Raises: as `leaf_names`.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    others = [structure.flatten_up_to(each) for each in rest]
    names = _names([path for path, _ in leaves])
    return structure.unflatten(map(function, names, (leaf for _, leaf in leaves), *others))


def abstract(tree: PyTree) -> PyTree:
    """Return `tree` with arrays replaced by `ShapeDtypeStruct`s that keep their shardings."""

    def one(leaf: Any) -> jax.ShapeDtypeStruct:
        leaf = leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else np.asarray(leaf)
        sharding = None if isinstance(leaf, jax.core.Tracer) else getattr(leaf, "sharding", None)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(one, tree)


def differences(then: PyTree, now: PyTree) -> str:
    """Return which leaves differ in shape or dtype, as `x was float32[2], is int32[2]; …`; "" where none do.

    Dtypes are compared as JAX makes them: NumPy's float64 and int64 become 32 bits wide.
    """
    before, after = named_leaves(abstract(then)), named_leaves(abstract(now))
    described = {
        name: (_described(before.get(name)), _described(after.get(name)))
        for name in before.keys() | after.keys()
    }
    return "; ".join(
        f"{name or 'the array'} was {a}, is {b}" for name, (a, b) in sorted(described.items()) if a != b
    )


def nbytes(tree: PyTree) -> int:
    """Return the bytes of all leaves of `tree` (arrays or `ShapeDtypeStruct`s), sharding not counted."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _described(x: jax.ShapeDtypeStruct | None) -> str:
    if x is None:
        return "missing"
    return f"{jax.dtypes.canonicalize_dtype(x.dtype, allow_extended_dtype=True)}{list(x.shape)}"


def _names(paths: Sequence[Path]) -> list[str]:
    names = [name_of(map(_key, path)) for path in paths]
    if len(set(names)) < len(names):
        seen: dict[str, Path] = {}
        for name, path in zip(names, paths, strict=True):
            if (other := seen.setdefault(name, path)) is not path:
                raise UsageError(
                    f"two leaves are called {name}: {jax.tree_util.keystr(other)} and "
                    f"{jax.tree_util.keystr(path)}. Give them keys that "
                    "read differently: rules and checkpoints go by names."
                )
    return names


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
