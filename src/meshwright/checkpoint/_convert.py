"""One checkpoint made from another: of other dtypes, or of a part of it."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from threading import Event

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from meshwright import __version__
from meshwright.checkpoint import _directory
from meshwright.checkpoint._format import (
    MANIFEST,
    ArrayLayout,
    Index,
    Manifest,
    NativeSource,
    Snapshot,
    commit,
    layouts_of,
    upload_part,
    write_streamed,
)
from meshwright.checkpoint._lazy import LazyArray
from meshwright.checkpoint._object_path import Directory, ObjectPath, location
from meshwright.checkpoint._source import Opened
from meshwright.errors import UsageError, nearest

PARAMETERS = "params/.*"


def convert(
    source: Opened,
    destination: str | Directory,
    *,
    dtype: DTypeLike | Mapping[str, DTypeLike] | None = None,
    only: str | None = None,
) -> Directory:
    """Write a checkpoint into the directory of checkpoints `destination`, and return where it is.

    In constant memory (into an object store, in that of the largest chunk and some more), without
    devices; step and extra stay. It is committed as every save is.

    Args:
      source: an opened checkpoint.
      destination: local or not; made where it is not; no run may have it open.
      dtype: of the parameters (`params/.*`), or by patterns: full matches, the first decides. Only
        arrays of floating-point numbers are converted.
      only: a pattern of the arrays to take, as a full match.

    Raises:
      UsageError: The source is of another format, a pattern matches nothing, a dtype is none of
        floating-point numbers, a number does not fit into it, or the step is at the destination already.
      DamagedError: A piece of the source is damaged.
    """
    if not isinstance(source, NativeSource):
        raise UsageError(f"{source} is of another format, of which only exports are made.")
    taken = _matching(only, list(source.arrays())) if only else list(source.arrays())
    patterns = dtype if isinstance(dtype, Mapping) else {} if dtype is None else {PARAMETERS: dtype}
    dtypes = _dtypes(source, taken) | _new_dtypes(source, taken, patterns)
    arrays = [_rewritten(layout, dtypes) for layout in layouts_of(source.manifest) if layout.name in dtypes]
    directory = location(destination)
    with _directory.lock(directory):
        _directory.probe(directory)
        return _write(source, arrays, directory)


def _write(source: NativeSource, arrays: list[ArrayLayout], directory: Directory) -> Directory:
    final = _directory.step_path(directory, source.step)
    if final.exists() or (final / MANIFEST).is_file():
        raise UsageError(f"{final} is there already; give another destination, or move it away.")
    writer = {**source.writer, "meshwright": __version__, "processes": 1}
    names = {array.name for array in arrays}
    keys = {name: impl for name, impl in source.manifest.prng_keys.items() if name in names}
    manifest = Manifest(source.step, writer, source.extra, prng_keys=keys)
    temporary = _directory.temporary_path(directory, source.step)
    temporary.mkdir()
    try:
        _write_data(source, arrays, temporary)
        commit(temporary, final, manifest, arrays, 1, Event())
    except BaseException:
        _directory.discard(temporary)
        raise
    return final


def _write_data(source: NativeSource, arrays: list[ArrayLayout], temporary: Directory) -> None:
    dtypes = {array.name: array.dtype for array in arrays}

    def read(name: str, index: Index) -> np.ndarray:
        return _cast(name, source.read(name, index), dtypes[name])

    if isinstance(temporary, ObjectPath):
        leaves = {
            array.name: LazyArray(array.shape, array.dtype, partial(read, array.name)) for array in arrays
        }
        chunks = Snapshot(leaves, arrays, 0)
        chunks.take(wait=False)
        upload_part(temporary, arrays, chunks, 0, 1)
    else:
        write_streamed(temporary, arrays, read)


def _dtypes(source: NativeSource, names: list[str]) -> dict[str, np.dtype]:
    arrays = source.manifest.arrays
    return {name: np.dtype(arrays[name].dtype) for name in names}


def _new_dtypes(
    source: NativeSource, names: list[str], patterns: Mapping[str, DTypeLike]
) -> dict[str, np.dtype]:
    """Return the dtype of each array that gets another."""
    old, new = _dtypes(source, names), {}
    for pattern, dtype in patterns.items():
        for name in _matching(pattern, names):
            if _is_floating(old[name]):
                new.setdefault(name, _floating(dtype))
    return new


def _rewritten(layout: ArrayLayout, dtypes: Mapping[str, np.dtype]) -> ArrayLayout:
    """Return the same chunks, of their new dtype and all written by one process."""
    return replace(layout, dtype=dtypes[layout.name], writers=(0,) * len(layout.writers))


def _matching(pattern: str, names: list[str]) -> list[str]:
    found = [name for name in names if re.fullmatch(pattern, name)]
    if not found:
        close = nearest(pattern, names)
        hint = f" The nearest name is {close}." if close else ""
        raise UsageError(f"the pattern {pattern!r} matches the whole name of no array.{hint}")
    return found


def _floating(dtype: DTypeLike) -> np.dtype:
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        raise UsageError(f"there is no dtype {dtype!r}; one is float32, or bfloat16.") from None
    if not _is_floating(found):
        raise UsageError(f"cannot convert to {found.name}: it is not a dtype of floating-point numbers.")
    return found


def _is_floating(dtype: DTypeLike) -> bool:
    return jnp.issubdtype(dtype, jnp.floating)


def _cast(name: str, block: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if block.dtype == dtype:
        return block
    wide = block.astype(np.float64)
    too_large = np.isfinite(wide) & (np.abs(wide) > float(jnp.finfo(dtype).max))
    if too_large.any():
        raise UsageError(f"cannot convert {name} to {dtype.name}: {wide[too_large][0]:g} does not fit.")
    return block.astype(dtype)
