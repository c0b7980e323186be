"""Source + target -> arrays on the mesh."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from meshwright import tree
from meshwright.checkpoint._keys import is_key
from meshwright.checkpoint._lazy import LazyArray
from meshwright.checkpoint._match import Assign, Fallback, matched
from meshwright.checkpoint._source import Source

_NUM_THREADS = 2  # while one copies, the other puts on devices
_LARGE = 1 << 20  # bytes


def restore(
    source: Source,
    target: tree.PyTree,
    *,
    assign: Assign = (),
    fallback: Fallback | None = None,
    ignore: str | None = None,
) -> tree.PyTree:
    r"""Return `target` with each leaf replaced by the array of that name in `source`.

    Leaves of `target` are arrays or `ShapeDtypeStruct`s; those with a sharding become global arrays
    with it, those without become NumPy arrays, and Python numbers become Python numbers. Mesh and
    number of processes of the writer do not matter: each process reads what its own devices need.

    Args:
      assign: Other names for what is wanted: pairs of a pattern for whole names in `target` and the
        name in `source`, `("params/(.*)", r"model/\1")`. The first pattern that matches decides, and
        one saved array may be assigned to many. None instead of a name leaves it to `fallback`. A pattern
        that decides nothing is an error, unless it is `optional`.
      fallback: A tree with the values of what `source` lacks, or a function that makes it, which is
        called if anything is lacking. Where `source` has a value, too, that is taken. The arrays of the
        fallback are used, not copied.
      ignore: A pattern for whole names in `source` that need not be wanted.

    Raises:
      CheckpointError: Names, shapes or dtypes differ, and then all differences are listed; or a
        piece is damaged.
      UsageError: A pattern is none, or one of `assign` decides nothing.
    """
    # What a function makes as a fallback is let go of before anything is read, but for what is used.
    found = restore_lazily(source, target, assign=assign, fallback=fallback, ignore=ignore)
    wanted, structure = jax.tree.flatten(target)
    values = structure.flatten_up_to(found)
    read = _read_all(wanted, values)
    return structure.unflatten(map(_finished, wanted, values, read))


def restore_lazily(
    source: Source,
    target: tree.PyTree,
    *,
    assign: Assign = (),
    fallback: Fallback | None = None,
    ignore: str | None = None,
) -> tree.PyTree:
    """Return `target` with each leaf replaced by a `LazyArray`: all is checked, but nothing read.

    What comes from `fallback` is there as it is. Such a tree can be saved again, piece by piece.

    Arguments and errors: as those of `restore`.
    """
    found = matched(source, tree.named_leaves(target), assign, fallback, ignore)
    return tree.map_named(lambda name, _: found[name], target)


def _read_all(wanted: Sequence[Any], found: Sequence[Any]) -> list[Any]:
    """Read what is large on threads, the rest here: threads in Python would only hold each other up."""
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        reading = [
            threads.submit(_read, *pair) if _is_large(pair[1]) else pair
            for pair in zip(wanted, found, strict=True)
        ]
        return [one.result() if isinstance(one, Future) else _read(*one) for one in reading]


def _is_large(found: Any) -> bool:
    return isinstance(found, LazyArray) and found.nbytes >= _LARGE


def _read(wanted: Any, found: Any) -> Any:
    """Return a saved array, read, in the place that is wanted; a fallback's value as it is."""
    if not isinstance(found, LazyArray):
        return found
    sharding = getattr(wanted, "sharding", None)
    return np.asarray(found) if sharding is None else _on_devices(found, sharding)


def _on_devices(found: LazyArray, sharding: jax.sharding.Sharding) -> jax.Array:
    """Read what this process's devices need, each part once for all that hold it, and put it there."""
    wanted: Any = sharding.addressable_devices_indices_map(found.shape).values()
    indices = {_key(index): index for index in wanted}
    parts = dict(zip(indices, found.read_parts(list(indices.values())), strict=True))
    return jax.make_array_from_callback(
        found.shape, sharding, lambda index: parts[_key(index)], dtype=found.dtype
    )


def _key(index: Any) -> tuple[tuple[int | None, int | None], ...]:
    return tuple((part.start, part.stop) for part in index)


def _finished(wanted: Any, found: Any, read: Any) -> Any:
    """Return what was read, or a fallback's value, in the form that is wanted. May be collective."""
    if not isinstance(found, LazyArray):
        return _placed(wanted, found)
    if is_key(wanted):
        return jax.random.wrap_key_data(read, impl=found.key_impl)
    if not hasattr(wanted, "dtype"):
        return read.item()
    return _as_scalar(wanted, read)


def _placed(wanted: Any, value: Any) -> Any:
    sharding = getattr(wanted, "sharding", None)
    if sharding is not None:
        return jax.device_put(value, sharding)
    if is_key(wanted):
        return value
    return _as_scalar(wanted, np.asarray(value)) if hasattr(wanted, "dtype") else np.asarray(value).item()


def _as_scalar(wanted: Any, array: np.ndarray) -> Any:
    """Return a NumPy scalar where one is wanted, otherwise the array."""
    return array[()] if isinstance(wanted, np.generic) else array
