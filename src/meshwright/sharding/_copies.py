"""Arrays, from wherever they are, copied to where a layout puts them."""

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
"""So many of an array, from its beginning to its end, tell whether it is another."""


def copy_to(arrays: PyTree, shardings: PyTree) -> PyTree:
    """Return copies of `arrays` on the devices that `shardings` name, which share no memory with them.

    So the copies may be donated and the originals stay. (What `jax.device_put` returns may share some, and
    a step that is given it deletes the caller's arrays. Its `may_alias=False` does not help where an array
    of one device is replicated, in JAX 0.10 and 0.12.) The memory of one array is needed besides.

    Collective. Arrays may be NumPy's, or JAX's of any sharding; those that are not of all processes must be
    the same on each.

    Raises:
      UsageError: they are not; some values of each are compared.
    """
    places = [sharding.device_set for sharding in jax.tree.leaves(shardings)]
    if places and process.is_of_all(places[0]):
        process.compare("the arrays given", lambda: _some_values(arrays))
    return jax.tree.map(_copied, arrays, shardings)


def move_to(x: Any, sharding: Sharding) -> jax.Array:
    """Return `x`, an array of any sort, with `sharding`, perhaps in the same memory. Collective."""
    if isinstance(x, jax.Array) and (sharding.is_fully_addressable or not x.is_fully_addressable):
        return jax.device_put(x, sharding)
    # Of NumPy's arrays `device_put` would compare all bytes with those of the other processes.
    x = np.asarray(x)
    x = x.astype(jax.dtypes.canonicalize_dtype(x.dtype), copy=False)
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def _some_values(arrays: PyTree) -> dict[str, str]:
    """Return digests of some values of each array, by name, but of one that all processes hold together."""
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
