"""Names of the leaves of a pytree, which are the same everywhere, and short texts about its arrays.

The name of a leaf is its path, `params/layers/0/q`. Sharding rules, checkpoints, reports and errors all use
it. `%` and `/` inside a key are written `%25` and `%2F`, so that two leaves never have the same name, and a
name can always be split into its keys again.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from meshwright.base._numbers import human_bytes, mesh_text
from meshwright.errors import InputError, UsageError

PyTree = Any
"""Nested dictionaries, tuples, lists and dataclasses of arrays, as JAX takes them."""
Path = tuple[Any, ...]
"""The keys of a leaf, as JAX gives them."""


def leaf_names(tree: PyTree) -> list[str]:
    """Return the names of the leaves of a tree, in JAX's order. No two are the same.

    Args:
      tree: Any pytree. A tree that is itself a leaf has the name `""`.

    Raises:
      UsageError: Two leaves would have the same name, as their keys have the same text.

    Example:
      >>> mw.parallel.leaf_names({"params": {"layers": [{"q": 1}, {"q": 2}]}})
      ['params/layers/0/q', 'params/layers/1/q']
    """
    return _names([path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]])


def named_leaves(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> dict[str, Any]:
    """Return the leaves of a tree by name, in JAX's order."""
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf)[0]
    return dict(zip(_names([path for path, _ in leaves]), (leaf for _, leaf in leaves), strict=True))


def empty_nodes(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> dict[str, Any]:
    """Return the nodes of a tree that have no leaves, by name: None, or {} for an empty container.

    Example:
      >>> mw.base._internal.empty_nodes({"a": None, "b": 1, "c": []})
      {'a': None, 'c': {}}
    """

    def is_empty(node: Any) -> bool:
        structure = jax.tree.structure(node)
        return structure.num_nodes == 1 and structure.num_leaves == 0

    nodes = named_leaves(tree, lambda node: is_empty(node) or (is_leaf is not None and is_leaf(node)))
    return {name: None if node is None else {} for name, node in nodes.items() if is_empty(node)}


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dictionaries, made from the names of their leaves.

    Example:
      >>> mw.base._internal.nested({"a/b": 1, "c": 2})
      {'a': {'b': 1}, 'c': 2}
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
        f"{name} is a leaf above or below another leaf, which nested dictionaries cannot express. Use the "
        "leaves by name, or rename one."
    )


def name_of(keys: Iterable[str]) -> str:
    """Return the name of the leaf with these keys.

    Example:
      >>> mw.base._internal.name_of(["params", "a/b"])
      'params/a%2Fb'
    """
    return "/".join(key.replace("%", "%25").replace("/", "%2F") for key in keys)


def keys_of(name: str) -> list[str]:
    """Return the keys in the name of a leaf.

    Example:
      >>> mw.base._internal.keys_of("params/a%2Fb")
      ['params', 'a/b']
    """
    return [key.replace("%2F", "/").replace("%25", "%") for key in name.split("/")]


def map_named(function: Callable[..., Any], tree: PyTree, *rest: PyTree) -> PyTree:
    """Return a tree with each leaf replaced by the result of a function of its name and value."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    others = [structure.flatten_up_to(other) for other in rest]
    names = _names([path for path, _ in leaves])
    return structure.unflatten(map(function, names, (leaf for _, leaf in leaves), *others))


def abstract(tree: PyTree) -> PyTree:
    """Return a tree with `ShapeDtypeStruct`s in place of arrays, with the arrays' shardings."""

    def struct(leaf: Any) -> jax.ShapeDtypeStruct:
        leaf = leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else np.asarray(leaf)
        sharding = None if isinstance(leaf, jax.core.Tracer) else getattr(leaf, "sharding", None)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(struct, tree)


def differences(old: PyTree, new: PyTree) -> str:
    """Return a text that lists the leaves whose shapes or dtypes differ; "" if none do.

    Dtypes are compared as JAX would make them: NumPy's float64 and int64 count as 32 bits wide, unless JAX's
    64-bit mode is on.

    Example:
      >>> mw.base._internal.differences({"x": np.zeros(2, np.float32)}, {"x": np.zeros(3, np.float32)})
      'x was float32[2], is float32[3]'
    """
    old_leaves, new_leaves = named_leaves(abstract(old)), named_leaves(abstract(new))
    described = {
        name: (_described(old_leaves.get(name)), _described(new_leaves.get(name)))
        for name in old_leaves.keys() | new_leaves.keys()
    }
    return "; ".join(
        f"{name or 'the array'} was {a}, is {b}" for name, (a, b) in sorted(described.items()) if a != b
    )


def nbytes(tree: PyTree) -> int:
    """Return the size in bytes of all leaves of a tree, as if each array existed once.

    Args:
      tree: A pytree of arrays or `ShapeDtypeStruct`s. Shardings and replicas are not counted.

    Example:
      >>> mw.parallel.nbytes({"w": jnp.zeros((2, 3), jnp.float32)})
      24
    """
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _described(x: jax.ShapeDtypeStruct | None) -> str:
    if x is None:
        return "missing"
    return f"{jax.dtypes.canonicalize_dtype(x.dtype, allow_extended_dtype=True)}{list(x.shape)}"


def _names(paths: Sequence[Path]) -> list[str]:
    names = [name_of(map(_key, path)) for path in paths]
    if len(set(names)) < len(names):
        paths_by_name: dict[str, Path] = {}
        for name, path in zip(names, paths, strict=True):
            if (other := paths_by_name.setdefault(name, path)) is not path:
                raise UsageError(
                    f"two leaves are called {name}: {jax.tree_util.keystr(other)} and "
                    f"{jax.tree_util.keystr(path)}. Rules and checkpoints use names, so give the two keys "
                    "different texts."
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


def size_text(tree: PyTree) -> str:
    """Return the number and total size of the arrays, or structs, in a tree: `12 arrays of 1.5 MiB`."""
    leaves = jax.tree.leaves(tree)
    arrays = [x for x in leaves if hasattr(x, "shape") and hasattr(x, "dtype")]
    if len(arrays) < len(leaves):
        return _counted(len(leaves), "leaf", "leaves")
    nbytes = sum(math.prod(x.shape) * x.dtype.itemsize for x in arrays)
    are_structs = arrays and all(isinstance(x, jax.ShapeDtypeStruct) for x in arrays)
    kind = ("struct", "structs") if are_structs else ("array", "arrays")
    return f"{_counted(len(arrays), *kind)} of {human_bytes(nbytes)}"


def mesh_of(tree: PyTree) -> str | None:
    """Return the mesh of a tree's first array, written as by `mesh_text`; None if it has no mesh."""
    for x in jax.tree.leaves(tree)[:1]:
        sharding = None if isinstance(x, jax.core.Tracer) else getattr(x, "sharding", None)
        if isinstance(sharding, NamedSharding):
            return mesh_text(sharding.mesh.shape)
    return None


def values_of(x: Any) -> np.ndarray | None:
    """Return the values of an array or a number; None if they are not known, as inside `jit`."""
    if isinstance(x, jax.core.Tracer) or not isinstance(x, int | float | np.generic | np.ndarray | jax.Array):
        return None
    if isinstance(x, jax.Array) and (x.is_deleted() or not (x.is_fully_addressable or x.is_fully_replicated)):
        return None
    return np.asarray(x)


def _counted(count: int, singular: str, several: str) -> str:
    return f"{count:,} {singular if count == 1 else several}"
