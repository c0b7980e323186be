"""Arrays from any library, device or host, converted and copied to a layout's devices."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from meshwright.base._internal import PyTree, tree
from meshwright.errors import UsageError
from meshwright.processes import _internal as processes


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
      >>> copies = mw.parallel.copy_to({"w": np.ones(8)}, {"w": mw.Layout(mesh).batch_sharding})
      >>> copies["w"].sharding.spec
      P('data',)
    """
    check_equal(arrays, jax.tree.leaves(shardings)[:1])
    return jax.tree.map(lambda x, sharding: _copier(sharding)(move_to(x, sharding)), arrays, shardings)


def check_equal(arrays: PyTree, shardings: Sequence[Sharding]) -> None:
    """Check that the arrays given are equal on all processes that the shardings span. Collective.

    Of an array that is on the mesh already, the parts that every process has are compared.
    """
    if shardings and processes.spans_all_processes(shardings[0].device_set):
        named = tree.named_leaves(arrays).items()
        processes.compare("the arrays given", lambda: {name or "the array": _digest(x) for name, x in named})


def move_to(x: Any, sharding: Sharding) -> jax.Array:
    """Return the array `x` with a sharding, perhaps in the same memory. Collective: call it on all
    processes.
    """
    if isinstance(x, jax.Array) and (sharding.is_fully_addressable or not x.is_fully_addressable):
        return jax.device_put(x, sharding)
    # Given an array of NumPy, `device_put` would compare all its bytes with the other processes.
    x = np.asarray(x)
    x = x.astype(jax.dtypes.canonicalize_dtype(x.dtype), copy=False)
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def _digest(x: Any) -> str:
    if not isinstance(x, jax.Array) or x.is_fully_addressable:
        return _digest_local(x)
    parts: dict[int, set[str]] = {}
    for device, index in x.sharding.devices_indices_map(x.shape).items():
        parts.setdefault(device.process_index, set()).add(str(index))
    if any(indices != parts[jax.process_index()] for indices in parts.values()):
        return "split between processes"
    shards = {str(shard.index): shard.data for shard in x.addressable_shards}
    return ", ".join(_digest_local(shards[index]) for index in sorted(shards))


def _digest_local(x: Any) -> str:
    if _is_on_host(x):
        return processes.digest_of(x)
    x = jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended) else x
    return f"{x.dtype}{list(x.shape)} of sum {int(_sum_of_bits(x)):08x}"


def _is_on_host(x: Any) -> bool:
    if not isinstance(x, jax.Array) or x.sharding.memory_kind == "pinned_host":
        return True
    # On CPUs a CRC-32 takes a twentieth of the time of a sum of bits.
    return next(iter(x.devices())).platform == "cpu"


@jax.jit
def _sum_of_bits(x: jax.Array) -> jax.Array:
    """Return the sum of all elements' bits, each mixed with its position. The host gets this number alone."""
    x = jnp.stack([x.real, x.imag]) if jnp.iscomplexobj(x) else x.astype("uint8") if x.dtype == bool else x
    size = (jnp.finfo if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo)(x.dtype).bits
    bits = jax.lax.bitcast_convert_type(x, f"uint{min(size, 32)}").astype("uint32")
    for dim in range(bits.ndim):
        position = jax.lax.broadcasted_iota("uint32", bits.shape, dim)
        bits += position * np.uint32(pow(0x9E3779B1, dim + 1, 2**32))
    # The finaliser of MurmurHash3.
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        bits = (bits ^ bits >> shift) * np.uint32(factor)
    return bits.sum(dtype="uint32")


@functools.lru_cache(maxsize=4096)
def _copier(sharding: Sharding) -> Any:
    return jax.jit(jnp.copy, out_shardings=sharding)


_ARRAYS = jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic | bool | int | float | complex


def as_arrays(values: PyTree, name: str = "params") -> PyTree:
    """Return a tree whose arrays are all of JAX or NumPy.

    Those of other libraries are converted without a copy.
    """
    if all(_is_array(x) for x in jax.tree.leaves(values)):
        return values
    return tree.map_named(
        lambda path, x: x if _is_array(x) else _read(f"{name}/{path}".rstrip("/"), x), values
    )


def _is_array(x: Any) -> bool:
    if isinstance(x, _ARRAYS):
        return True
    try:
        # An array of any library with a NumPy dtype passes.
        return np.dtype(x.dtype) is not None
    except (AttributeError, TypeError):
        return False


def _read(name: str, x: Any) -> Any:
    if not hasattr(x, "__array__") and not hasattr(x, "__dlpack__"):
        raise UsageError(
            f"{name} is not an array; it is of type {type(x).__name__}.\n"
            "  Give arrays: trainer.params, load_ckpt(…)[0]['params'], eqx.filter(module, eqx.is_array)."
        )
    if hasattr(x, "detach"):
        # PyTorch refuses to export a tensor that records gradients.
        x = x.detach()
    try:
        # NumPy lacks bfloat16. Otherwise it is preferred: DLPack keeps arrays in the memory of one device.
        return jax.dlpack.from_dlpack(x) if "bfloat16" in str(x.dtype) else np.asarray(x)
    except Exception as error:
        raise UsageError(
            f"{name}, of type {type(x).__name__} and dtype {x.dtype}, cannot be read: {error}.\n"
            "  Give an array of NumPy or JAX. For a PyTorch tensor: x.detach().cpu().float().numpy()."
        ) from error
