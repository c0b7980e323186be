"""Short texts about arrays, for the `repr` of metrics, states and checkpoints."""

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from meshwright.base._numbers import human_bytes, mesh_text

PyTree = Any


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


def _counted(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"
