"""Copies of arrays, from any device or host, placed as a layout says."""

import functools
import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from meshwright import process, tree
from meshwright.tree import PyTree

_NUM_VALUES = 256
"""Number of values of an array, evenly spaced, that are compared between processes."""


def copy_to(arrays: PyTree, shardings: PyTree) -> PyTree:
    """Return copies of `arrays` placed as `shardings` say, which share no memory with the originals.

    The copies may be donated while the originals stay valid. (`jax.device_put` may return arrays that share
    memory, and a step that donates them deletes the caller's arrays. Its `may_alias=False` does not help if
    an array of one device is replicated, in JAX 0.10 and 0.12.) Extra memory of one array is needed.
    Collective: call it on all processes.

    Args:
      arrays: Arrays of NumPy, or of JAX with any sharding. An array that one process holds alone must be
        equal on every process.
      shardings: A tree of shardings with the same structure.

    Raises:
      UsageError: Such arrays differ between processes; some values of each are compared.

    Example:
      >>> mesh = mw.make_mesh("data=8")
      >>> copies = mw.sharding.copy_to({"w": np.ones(8)}, {"w": mw.Layout(mesh).batch_sharding})
      >>> copies["w"].sharding.spec
      P('data',)
    """
    places = [sharding.device_set for sharding in jax.tree.leaves(shardings)]
    if places and process.spans_all_processes(places[0]):
        process.compare("the arrays given", lambda: _some_values(arrays))
    return jax.tree.map(_copied, arrays, shardings)


def move_to(x: Any, sharding: Sharding) -> jax.Array:
    """Return the array `x` with a sharding, perhaps in the same memory. Collective: call it on all processes.

    Args:
      x: An array of NumPy or JAX, or a number.
      sharding: The wanted sharding.
    """
    if isinstance(x, jax.Array) and (sharding.is_fully_addressable or not x.is_fully_addressable):
        return jax.device_put(x, sharding)
    # Given an array of NumPy, `device_put` would compare all its bytes with the other processes.
    x = np.asarray(x)
    x = x.astype(jax.dtypes.canonicalize_dtype(x.dtype), copy=False)
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def _some_values(arrays: PyTree) -> dict[str, str]:
    """Return digests of some values of each array, by name; arrays spread over all processes have none."""
    return {name or "the array": _digest(x) for name, x in tree.named_leaves(arrays).items()}


def _digest(x: Any) -> str:
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        x = jax.random.key_data(x)
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return f"{x.dtype}{list(x.shape)} on the mesh"
    x = np.asarray(x)
    some = np.take(x, np.arange(0, x.size, max(1, x.size // _NUM_VALUES)))
    return f"{x.dtype}{list(x.shape)} of digest {hashlib.sha256(some.tobytes()).hexdigest()[:12]}"


def _copied(x: Any, sharding: Sharding) -> jax.Array:
    return _copier(sharding)(move_to(x, sharding))


@functools.lru_cache(maxsize=4096)
def _copier(sharding: Sharding) -> Any:
    return jax.jit(jnp.copy, out_shardings=sharding)
