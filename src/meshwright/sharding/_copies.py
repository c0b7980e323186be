"""Copies of arrays, from any device or host, placed as a layout says."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from meshwright import process, tree
from meshwright.tree import PyTree


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
      UsageError: Such arrays differ between processes.

    Example:
      >>> mesh = mw.make_mesh("data=8")
      >>> copies = mw.sharding.copy_to({"w": np.ones(8)}, {"w": mw.Layout(mesh).batch_sharding})
      >>> copies["w"].sharding.spec
      P('data',)
    """
    compare_given(arrays, jax.tree.leaves(shardings)[:1])
    return jax.tree.map(_copied, arrays, shardings)


def compare_given(arrays: PyTree, shardings: Sequence[Sharding]) -> None:
    """Check that the arrays given are equal on all processes that the shardings span. Collective.

    Of an array that is on the mesh already, the parts that every process has are compared.

    Raises:
      UsageError: They differ. The message names the array and the processes.
    """
    if shardings and process.spans_all_processes(shardings[0].device_set):
        named = tree.named_leaves(arrays).items()
        process.compare("the arrays given", lambda: {name or "the array": _digest(x) for name, x in named})


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


def _digest(x: Any) -> str:
    if not isinstance(x, jax.Array) or x.is_fully_addressable:
        return process.digest_of(x)
    parts: dict[int, set[str]] = {}
    for device, index in x.sharding.devices_indices_map(x.shape).items():
        parts.setdefault(device.process_index, set()).add(str(index))
    if any(each != parts[jax.process_index()] for each in parts.values()):
        return "split between processes"
    here = {str(shard.index): shard.data for shard in x.addressable_shards}
    return ", ".join(process.digest_of(here[index]) for index in sorted(here))


def _copied(x: Any, sharding: Sharding) -> jax.Array:
    return _copier(sharding)(move_to(x, sharding))


@functools.lru_cache(maxsize=4096)
def _copier(sharding: Sharding) -> Any:
    return jax.jit(jnp.copy, out_shardings=sharding)
