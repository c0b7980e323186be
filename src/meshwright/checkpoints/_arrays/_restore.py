"""Restores a source into a target on any mesh or, without a target, into nested dictionaries."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias, TypeVar, overload

import jax
import numpy as np

from meshwright.base._internal import tree
from meshwright.checkpoints._arrays._keys import is_key
from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._arrays._match import Assign, Fallback, matched
from meshwright.checkpoints._arrays._source import Source
from meshwright.checkpoints._arrays._transpose import read_as
from meshwright.processes._internal import compare, on_all

_NUM_THREADS = 2  # one reads while the other copies to devices
_LARGE = 1 << 20  # bytes
_NUM_READ = 16  # small arrays, about, by which processes tell two checkpoints without checksums apart

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
    found = restore_lazily(source, target, assign=assign, fallback=fallback, ignore=ignore)
    wanted, structure = jax.tree.flatten(target)
    values = structure.flatten_up_to(found)
    read = deque(_read_all(wanted, values))  # each is freed once it is on its devices
    return lambda: structure.unflatten(
        [_finished(*pair, read.popleft()) for pair in zip(wanted, values, strict=True)]
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
    found = matched(source, tree.named_leaves(target), assign, fallback, ignore)
    return tree.map_named(lambda name, _: found[name], target)


def _read_all(wanted: Sequence[Any], found: Sequence[Any]) -> list[Any]:
    """Read large arrays on threads and small ones here, where threads would only wait for each other."""
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        reading = [
            threads.submit(_read, *pair) if _is_large(pair[1]) else pair
            for pair in zip(wanted, found, strict=True)
        ]
        return [one.result() if isinstance(one, Future) else _read(*one) for one in reading]


def _is_large(found: Any) -> bool:
    return isinstance(found, LazyArray) and found.nbytes >= _LARGE


def _read(wanted: Any, found: Any) -> Any:
    """Read a saved array to the devices of the wanted leaf, or into memory; a fallback's value stays."""
    if not isinstance(found, LazyArray):
        return found
    sharding = getattr(wanted, "sharding", None)
    if sharding is None:
        return np.asarray(found)
    return _on_devices(found, sharding if is_key(wanted) else read_as(found, sharding))


def _on_devices(found: LazyArray, sharding: jax.sharding.Sharding) -> jax.Array:
    """Read the parts that this process's devices need, each only once, and put them there."""
    wanted: Any = sharding.addressable_devices_indices_map(found.shape).values()
    indices = {_key(index): index for index in wanted}
    parts = dict(zip(indices, found.read_parts(list(indices.values())), strict=True))
    return jax.make_array_from_callback(
        found.shape, sharding, lambda index: parts[_key(index)], dtype=found.dtype
    )


def _key(index: Any) -> tuple[tuple[int | None, int | None], ...]:
    return tuple((part.start, part.stop) for part in index)


def _finished(wanted: Any, found: Any, read: Any) -> Any:
    """Return the array that was read, or a fallback's value, in the form of the target. May be collective."""
    if not isinstance(found, LazyArray):
        return _placed(wanted, found)
    if is_key(wanted):
        return jax.random.wrap_key_data(read, impl=found.key_impl)
    if not hasattr(wanted, "dtype"):
        return read.item()
    if isinstance(read, jax.Array) and read.sharding != wanted.sharding:
        return jax.device_put(read, wanted.sharding)
    return _as_scalar(wanted, read)


def _placed(wanted: Any, value: Any) -> Any:
    sharding = getattr(wanted, "sharding", None)
    if sharding is not None:
        return jax.device_put(value, sharding)
    if is_key(wanted):
        return value
    return _as_scalar(wanted, np.asarray(value)) if hasattr(wanted, "dtype") else np.asarray(value).item()


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


def _as_scalar(wanted: Any, array: np.ndarray) -> Any:
    """Return a NumPy scalar if the target has one, otherwise the array."""
    return array[()] if isinstance(wanted, np.generic) else array


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
