"""Source + target -> arrays on the mesh."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from meshwright import tree
from meshwright.checkpoint._source import Source
from meshwright.errors import CheckpointError

_NUM_THREADS = 2  # while one copies, the other puts on devices
_MAX_SUGGESTIONS = 20  # each compares one name with all others


def restore(source: Source, target: tree.PyTree) -> tree.PyTree:
    """Return `target` with each leaf replaced by the array of that name in `source`.

    Leaves of `target` are arrays or `ShapeDtypeStruct`s; those with a sharding become global arrays
    with it, those without become NumPy arrays, and Python numbers become Python numbers. Mesh and
    number of processes of the writer do not matter: each process reads what its own devices need.

    Raises:
      CheckpointError: Names, shapes or dtypes differ, and then all differences are listed; or a
        piece is damaged.
    """
    leaves = tree.named_leaves(target)
    _check(source, leaves)
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        restored = list(threads.map(lambda named: _restored(source, *named), leaves.items()))
    return jax.tree.unflatten(jax.tree.structure(target), restored)


def _restored(source: Source, name: str, leaf: Any) -> Any:
    if not hasattr(leaf, "dtype"):
        return source.read(name, ()).item()
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        return source.read(name, (slice(None),) * len(leaf.shape))
    return _on_devices(source, name, leaf)


def _on_devices(source: Source, name: str, leaf: Any) -> jax.Array:
    """Read what this process's devices need, each part once for all that hold it, and put it there."""
    indices = {
        _key(index): index for index in leaf.sharding.addressable_devices_indices_map(leaf.shape).values()
    }
    parts = dict(zip(indices, source.read_parts(name, list(indices.values())), strict=True))
    return jax.make_array_from_callback(
        leaf.shape, leaf.sharding, lambda index: parts[_key(index)], dtype=leaf.dtype
    )


def _key(index: Any) -> tuple[tuple[int | None, int | None], ...]:
    return tuple((part.start, part.stop) for part in index)


def _check(source: Source, wanted: Mapping[str, Any]) -> None:
    saved = source.arrays()
    missing = [name for name in wanted if name not in saved]
    surplus = [name for name in saved if name not in wanted]
    problems = [
        *_missing(missing, surplus),
        *(each for name in wanted if name in saved for each in _differences(name, saved[name], wanted[name])),
        *(f"{name}: in the checkpoint, but not wanted" for name in surplus),
    ]
    if problems:
        raise CheckpointError(f"{source} does not fit the target:\n  " + "\n  ".join(problems))


def _missing(missing: list[str], surplus: list[str]) -> list[str]:
    close = {name: tree.nearest(name, surplus) for name in missing[:_MAX_SUGGESTIONS]}
    hints = {name: f"; did you mean {other}?" for name, other in close.items() if other}
    return [f"{name}: wanted, but not in the checkpoint{hints.get(name, '')}" for name in missing]


def _differences(name: str, saved: Any, wanted: Any) -> list[str]:
    differences = []
    if tuple(saved.shape) != np.shape(wanted):
        differences.append(f"{name}: shape {tuple(saved.shape)} in the checkpoint, {np.shape(wanted)} wanted")
    dtype = wanted.dtype if hasattr(wanted, "dtype") else np.asarray(wanted).dtype
    if saved.dtype.name != dtype.name:
        differences.append(f"{name}: dtype {saved.dtype.name} in the checkpoint, {dtype.name} wanted")
    return differences
