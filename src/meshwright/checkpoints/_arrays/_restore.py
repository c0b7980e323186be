"""Restores a source into a target on any mesh or, without a target, into nested dictionaries.

If processes need an array split differently than it is stored, another sharding is chosen to read it.
Suppose an array is stored in chunks of rows, and is needed split along columns. Each process then needs a
little of every chunk, but a chunk is always read as a whole, for its checksum. So each process reads some of
the chunks, and the devices exchange the parts that they need:

    stored    chunks of rows      0 | 1 | 2 | 3
    read      process 0 reads     0 | 1           process 1 reads     2 | 3
    needed    process 0 holds the left half       process 1 holds the right half
"""

import functools
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias, TypeVar, overload

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from meshwright.base._internal import tree
from meshwright.checkpoints._arrays._cast import is_key
from meshwright.checkpoints._arrays._chunks import Bounds, bounds_of, overlapping
from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._arrays._match import Assign, Fallback, matched
from meshwright.checkpoints._arrays._source import Source
from meshwright.processes._internal import compare, on_all

_SMALL = 1 << 20  # bytes; exchanging less takes longer than reading it
# If reading takes more than this many times the needed elements, the devices exchange parts.
_MOST_READ = 1.5


def read_as(array: LazyArray, sharding: Sharding) -> Sharding:
    """Return the sharding to read an array with: `sharding`, or one along its chunks on the same devices."""
    is_split = isinstance(sharding, NamedSharding) and not sharding.is_fully_addressable
    if not is_split or array.stored_chunks is None or array.nbytes < _SMALL:
        return sharding
    return _read_as(array.shape, array.stored_chunks, sharding)


@functools.lru_cache(maxsize=4096)
def _read_as(shape: tuple[int, ...], chunk_shape: tuple[int, ...], sharding: NamedSharding) -> Sharding:
    along = [
        NamedSharding(sharding.mesh, PartitionSpec(*(None,) * dim, sharding.mesh.axis_names))
        for dim, (size, chunk) in enumerate(zip(shape, chunk_shape, strict=True))
        if chunk < size and size % sharding.mesh.size == 0
    ]
    num_needed = sum(math.prod(b - a for a, b in part) for parts in _parts(shape, sharding) for part in parts)
    if not along or _num_read(shape, chunk_shape, sharding) < _MOST_READ * num_needed:
        return sharding
    return min([sharding, *along], key=lambda candidate: _num_read(shape, chunk_shape, candidate))


def _num_read(shape: tuple[int, ...], chunk_shape: tuple[int, ...], sharding: Sharding) -> int:
    """Return the number of elements that all processes read together, in whole chunks."""
    num_chunks = sum(
        len({position for part in parts for position in overlapping(part, chunk_shape)})
        for parts in _parts(shape, sharding)
    )
    return num_chunks * math.prod(chunk_shape)


def _parts(shape: tuple[int, ...], sharding: Sharding) -> Iterable[set[Bounds]]:
    """Return the distinct parts of an array that each process holds."""
    parts: dict[int, set[Bounds]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        parts.setdefault(device.process_index, set()).add(bounds_of(index or (), shape))
    return parts.values()


# One reads while the other copies to devices.
_NUM_THREADS = 2
_LARGE = 1 << 20  # bytes
# About as many small arrays tell two checkpoints without checksums apart.
_NUM_READ = 16

T = TypeVar("T")

Structs: TypeAlias = "jax.ShapeDtypeStruct | Mapping[str, Structs] | Sequence[Structs]"
"""A tree of structs only. Restoring into it returns a tree of arrays, which is of another type."""


@overload
def restore(
    source: Source,
    target: Structs,
    *,
    assign: Assign = ...,
    fallback: Fallback | None = ...,
    ignore: str | None = ...,
) -> Any: ...
@overload
def restore(
    source: Source,
    target: T,
    *,
    assign: Assign = ...,
    fallback: Fallback | None = ...,
    ignore: str | None = ...,
) -> T: ...


def restore(
    source: Source,
    target: Any,
    *,
    assign: Assign = (),
    fallback: Fallback | None = None,
    ignore: str | None = None,
) -> Any:
    r"""Return `target` with each leaf replaced by the array of the same name in `source`.

    A leaf of `target` with a sharding becomes a global array with that sharding; one without becomes a NumPy
    array; a Python number becomes a Python number. The mesh and the number of processes that saved the
    checkpoint do not matter: each process reads the parts that its own devices need. (If these are small
    parts of every chunk, each process reads some whole chunks, and the devices exchange the parts.)

    If an array of `target` spans several processes, this is collective: call it on all of them.

    Args:
      source: The checkpoint to read, as `open_source` or `Checkpoints.source` returns it.
      target: A tree of arrays, `ShapeDtypeStruct`s and numbers, with the shapes and dtypes that were saved.
        Type checkers give the result its type, but `Any` if it is a tree of structs only.
      assign: Renames leaves: pairs of a pattern for names in `target` (see `meshwright.base._patterns`) and a
        name in `source`, `("params/(.*)", r"model/\1")`. The first pattern that matches decides. Several
        leaves may get the same saved array. None instead of a name takes the leaf from `fallback`. A pattern
        that decides nothing is an error, unless it is `mw.parallel.optional`.
      fallback: A tree with values for leaves that `source` lacks, or a function that makes it, which is
        called only if some are missing. Its arrays are used, not copied.
      ignore: A pattern for names in `source` that `target` may lack. A pattern that matches none is an error.

    Raises:
      CheckpointError: Names, shapes or dtypes differ; all differences are listed.
      DamagedError: A part of the checkpoint is damaged.
      UsageError: A pattern is not a regular expression, or decides nothing.

    Example:
      >>> with mw.Checkpoints("run") as checkpoints:
      ...     checkpoints.save(100, {"w": jnp.ones(3), "step": 100})
      >>> target = {"w": jax.ShapeDtypeStruct((3,), jnp.float32), "step": 0}
      >>> mw.restore(mw.checkpoints.open_source("run"), target)
      {'step': 100, 'w': array([1., 1., 1.], dtype=float32)}
    """
    read = partial(read_for, source, target, assign=assign, fallback=fallback, ignore=ignore)
    if not _is_of_several_processes(target):
        return read()()
    compare_source(source)
    return on_all(read)()


def read_for(
    source: Source,
    target: T,
    *,
    assign: Assign = (),
    fallback: Fallback | None = None,
    ignore: str | None = None,
) -> Callable[[], T]:
    """Read all that this process needs for `restore`, and return a function that finishes it.

    Reading may fail on one process only. The function that is returned is collective if an array of `target`
    spans several processes; it returns what `restore` does.
    """
    # A fallback made by a function is freed before anything is read, except for the leaves that are used.
    matched_tree = restore_lazily(source, target, assign=assign, fallback=fallback, ignore=ignore)
    leaves, structure = jax.tree.flatten(target)
    values = structure.flatten_up_to(matched_tree)
    # Popped one by one, each array is freed once it is on its devices.
    read = deque(_read_all(leaves, values))
    return lambda: structure.unflatten(
        [_finished(*pair, read.popleft()) for pair in zip(leaves, values, strict=True)]
    )


def restore_lazily(
    source: Source,
    target: tree.PyTree,
    *,
    assign: Assign = (),
    fallback: Fallback | None = None,
    ignore: str | None = None,
) -> tree.PyTree:
    """Return `target` with each leaf replaced by a `LazyArray`: all is checked, but no values are read.

    Leaves from `fallback` are returned as they are. The tree can be saved again without being in memory as a
    whole.

    Args:
      source: As in `restore`.
      target: As in `restore`.
      assign: As in `restore`.
      fallback: As in `restore`.
      ignore: As in `restore`.

    Raises:
      CheckpointError: As `restore`.
      UsageError: As `restore`.

    Example:
      >>> source = mw.checkpoints.as_source({"w": np.arange(3)}, "the source")
      >>> mw.checkpoints.restore_lazily(source, {"w": np.zeros(3, int)})["w"].shape
      (3,)
    """
    arrays = matched(source, tree.named_leaves(target), assign, fallback, ignore)
    return tree.map_named(lambda name, _: arrays[name], target)


def _read_all(leaves: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Read large arrays on threads and small ones here, where threads would only wait for each other."""
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        reading = [
            threads.submit(_read, leaf, value)
            if isinstance(value, LazyArray) and value.nbytes >= _LARGE
            else (leaf, value)
            for leaf, value in zip(leaves, values, strict=True)
        ]
        return [task.result() if isinstance(task, Future) else _read(*task) for task in reading]


def _read(leaf: Any, value: Any) -> Any:
    """Read a saved array to the devices of the wanted leaf, or into memory; a fallback's value stays."""
    if not isinstance(value, LazyArray):
        return value
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        return np.asarray(value)
    return _on_devices(value, sharding if is_key(leaf) else read_as(value, sharding))


def _on_devices(array: LazyArray, sharding: jax.sharding.Sharding) -> jax.Array:
    """Read the parts that this process's devices need, each only once, and put them there."""
    device_indices: Any = sharding.addressable_devices_indices_map(array.shape).values()
    indices = {_key(index): index for index in device_indices}
    parts = dict(zip(indices, array.read_parts(list(indices.values())), strict=True))
    return jax.make_array_from_callback(
        array.shape, sharding, lambda index: parts[_key(index)], dtype=array.dtype
    )


def _key(index: Any) -> tuple[tuple[int | None, int | None], ...]:
    return tuple((part.start, part.stop) for part in index)


def _finished(leaf: Any, value: Any, read: Any) -> Any:
    """Return the array that was read, or a fallback's value, in the form of the target. May be collective."""
    if not isinstance(value, LazyArray):
        return _placed(leaf, value)
    if is_key(leaf):
        return jax.random.wrap_key_data(read, impl=value.key_impl)
    if not hasattr(leaf, "dtype"):
        return read.item()
    if isinstance(read, jax.Array) and read.sharding != leaf.sharding:
        return jax.device_put(read, leaf.sharding)
    return _as_scalar(leaf, read)


def _placed(leaf: Any, value: Any) -> Any:
    sharding = getattr(leaf, "sharding", None)
    if sharding is not None:
        return jax.device_put(value, sharding)
    if is_key(leaf):
        return value
    return _as_scalar(leaf, np.asarray(value)) if hasattr(leaf, "dtype") else np.asarray(value).item()


def compare_source(source: Source) -> None:
    """Check that all processes read the same checkpoint, which may be on disks of their own. Collective.

    Compared are the checksums that were saved with the arrays, or the first values of some without one.
    """

    def values() -> dict[str, str]:
        arrays = source.arrays()
        # A large one may be one chunk, of which no process is to read more than its part.
        small = sorted(name for name, x in arrays.items() if x.nbytes <= _LARGE)
        read = {*small[:: max(1, len(small) // _NUM_READ)]}

        def value(name: str, x: LazyArray) -> Any:
            return x.checksum() if x.checksum else x.read((slice(0, 1),) * x.ndim) if name in read else "…"

        return {name: f"{x.dtype}{list(x.shape)}, {value(name, x)}" for name, x in arrays.items()}

    compare("the checkpoint that is read", values)


def _is_of_several_processes(target: tree.PyTree) -> bool:
    shardings = (getattr(x, "sharding", None) for x in jax.tree.leaves(target))
    return any(sharding is not None and not sharding.is_fully_addressable for sharding in shardings)


def _as_scalar(leaf: Any, array: np.ndarray) -> Any:
    """Return a NumPy scalar if the target has one, otherwise the array."""
    return array[()] if isinstance(leaf, np.generic) else array


def load(source: Source) -> dict[str, Any]:
    """Return a whole source as nested dictionaries of NumPy arrays; lists and tuples have numbers for keys.

    Typed PRNG keys are returned as such. For other dtypes `cast` the source first, which leaves integers as
    they are: `load(cast(source, [(".*", "bfloat16")]))`.

    Args:
      source: The checkpoint to read.

    Raises:
      InputError: One name is a prefix of another, as `a` of `a/b`.
      DamagedError: A part of the checkpoint is damaged.

    Example:
      >>> mw.checkpoints.load(mw.checkpoints.as_source({"layer/w": np.arange(3)}, "the source"))
      {'layer': {'w': array([0, 1, 2])}}
    """
    return restore(source, tree.nested({name: _struct(x) for name, x in source.arrays().items()}))


def load_lazily(source: Source) -> dict[str, Any]:
    """Return a whole source as nested dictionaries of `LazyArray`s; no values are read.

    Args:
      source: The checkpoint.

    Raises:
      InputError: One name is a prefix of another, as `a` of `a/b`.

    Example:
      >>> source = mw.checkpoints.as_source({"layer/w": np.arange(3)}, "the source")
      >>> np.asarray(mw.checkpoints.load_lazily(source)["layer"]["w"])
      array([0, 1, 2])
    """
    return tree.nested(source.arrays())


def _struct(array: LazyArray) -> jax.ShapeDtypeStruct:
    struct = jax.ShapeDtypeStruct(array.shape, array.dtype)
    if array.key_impl is None:
        return struct
    return jax.eval_shape(partial(jax.random.wrap_key_data, impl=array.key_impl), struct)
