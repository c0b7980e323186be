"""Source + target -> arrays on the mesh."""

from typing import Any

import jax
import numpy as np

from meshwright import tree
from meshwright.checkpoint._keys import is_key
from meshwright.checkpoint._lazy import LazyArray
from meshwright.checkpoint._match import Assign, Fallback, matched
from meshwright.checkpoint._source import Source


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
        one saved array may be assigned to many. None instead of a name leaves it to `fallback`.
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
    return jax.tree.map(_loaded, target, found)


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


def _loaded(wanted: Any, found: Any) -> Any:
    """Return an array or a fallback's value in the form and in the place that are wanted."""
    if not isinstance(found, LazyArray):
        return _placed(wanted, found)
    if is_key(wanted):
        return jax.random.wrap_key_data(_read(wanted, found), impl=found.key_impl)
    if not hasattr(wanted, "dtype"):
        return found.read(()).item()
    return _read(wanted, found)


def _read(wanted: Any, found: LazyArray) -> Any:
    sharding = getattr(wanted, "sharding", None)
    if sharding is None:
        return _as_scalar(wanted, np.asarray(found))
    return jax.make_array_from_callback(found.shape, sharding, _read_once(found), dtype=found.dtype)


def _read_once(found: LazyArray) -> Any:
    """Return a function that reads a part of an array, and each part once for all devices that hold it."""
    parts: dict[tuple, np.ndarray] = {}

    def read(index: tuple[slice, ...]) -> np.ndarray:
        key = tuple((part.start, part.stop) for part in index)
        if key not in parts:
            parts[key] = found.read(index)
        return parts[key]

    return read


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
