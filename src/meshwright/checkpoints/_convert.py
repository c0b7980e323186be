"""Converts a checkpoint of any format into Meshwright's own, also with other dtypes or only a part of it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Event

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from meshwright._version import __version__
from meshwright.base._internal import Directory, ObjectPath, Table, compiled, judge, location
from meshwright.checkpoints import _directory
from meshwright.checkpoints._arrays._cast import cast_leaf, floating
from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._arrays._source import Arrays, Opened, Source, empty_of, spelling_of
from meshwright.checkpoints._exports import errors_naming
from meshwright.checkpoints._format._commit import commit
from meshwright.checkpoints._format._layout import ArrayLayout, layouts
from meshwright.checkpoints._format._manifest import MANIFEST, Manifest
from meshwright.checkpoints._format._read import NativeSource
from meshwright.checkpoints._format._snapshot import Snapshot
from meshwright.checkpoints._format._write import write_part, write_streamed
from meshwright.errors import UsageError

PARAMETERS = ("^params/.*", "^target/.*", "^weights.*", ".*")
"""Patterns for parameters: Meshwright's, T5X's and seqax's; without any of these names, all arrays."""

DTypes = DTypeLike | Mapping[str, DTypeLike]


def convert(
    source: Opened,
    destination: str | Directory,
    *,
    transform: Callable[[Source], Source] | None = None,
    dtype: DTypes | None = None,
    only: str | None = None,
) -> Directory:
    """Write a checkpoint in Meshwright's format, and return the path of the new step directory.

    Uses constant memory (writing to a store, that of a few chunks) and no devices. The step and `extra` stay
    the same. Given another format, leaves get their Meshwright names, values that are no arrays are left out,
    and a step that is unknown becomes 0.

    Example:
      >>> with mw.Checkpoints("run") as checkpoints:
      ...     checkpoints.save(100, {"params": {"w": jnp.ones(3)}})
      >>> path = mw.checkpoints._internal.convert(mw.checkpoints.open_source("run"), "half", dtype="bfloat16")
      >>> mw.checkpoints.open_source(path).arrays()["params/w"].dtype
      dtype(bfloat16)
    """
    changed = transform(source) if transform else with_native_names(source)
    arrays = with_changes(changed, dtype=dtype, only=only).arrays()
    if isinstance(changed, NativeSource):
        array_layouts = [
            # The chunks stay the same, of the new dtype and all written by this one process.
            replace(layout, dtype=arrays[layout.name].dtype, writers=(0,) * len(layout.writers))
            for layout in changed.manifest.layouts()
            if layout.name in arrays
        ]
    else:
        array_layouts = list(layouts(arrays, 1))
    directory = _directory.of_checkpoints(location(destination))
    with _directory.lock(directory):
        _directory.probe(directory)
        # A store has no locks, so the temporary files may belong to another process.
        if not isinstance(directory, ObjectPath):
            _directory.remove_temporaries(directory)
        return _write(_manifest(source, arrays), arrays, array_layouts, directory)


def with_changes(source: Source, *, dtype: DTypes | None = None, only: str | None = None) -> Source:
    """Return a checkpoint with only some arrays, or with parameters cast while they are read.

    Patterns may match the name in the source or the Meshwright name.
    """
    arrays, spelling = source.arrays(), spelling_of(source)
    ours = {name: spelling.ours(name) for name in arrays}
    table = Table("only", (".*" if only is None else only,))
    judge({table: ours}, spelling.ours)
    chosen_names = {name: other for name, other in ours.items() if table.first(name, other)}
    new = _new_dtypes(arrays, chosen_names, _patterns(dtype, chosen_names))
    new_arrays = {
        name: cast_leaf(name, arrays[name], new[name]) if name in new else arrays[name]
        for name in chosen_names
    }
    empty = {name: node for name, node in empty_of(source).items() if table.first(name)}
    return Arrays(str(source), new_arrays, empty, spelling)


def _patterns(dtype: DTypes | None, ours: Mapping[str, str]) -> Mapping[str, DTypeLike]:
    if isinstance(dtype, Mapping):
        return dtype
    names = ours.values()
    first_match = next((pattern for pattern in PARAMETERS if any(map(compiled(pattern), names))), ".*")
    return {} if dtype is None else {first_match: dtype}


def with_native_names(source: Source) -> Source:
    """Return a source with Meshwright names; unchanged, if two arrays would get the same name."""
    arrays, ours = source.arrays(), spelling_of(source).ours
    named = {ours(name): array for name, array in arrays.items()}
    if named.keys() == arrays.keys() or len(named) < len(arrays):
        return source
    return Arrays(str(source), named, empty_of(source))


def _manifest(source: Opened, arrays: Mapping[str, LazyArray]) -> Manifest:
    is_native = isinstance(source, NativeSource)
    writer = source.writer if is_native else {"converted from": source.format}
    keys = {name: array.key_impl for name, array in arrays.items() if array.key_impl}
    return Manifest(
        source.step or 0,
        {**writer, "meshwright": __version__, "processes": 1},
        source.extra if is_native else {},
        prng_keys=keys,
    )


def _write(
    manifest: Manifest,
    arrays: Mapping[str, LazyArray],
    array_layouts: list[ArrayLayout],
    directory: Directory,
) -> Directory:
    final = _directory.step_path(directory, manifest.step)
    if final.exists() or (final / MANIFEST).is_file():
        raise UsageError(f"{final} exists already; give another destination, or move it away.")
    temporary = _directory.temporary_path(directory, manifest.step)
    temporary.mkdir()
    try:
        with errors_naming(final):
            _write_data(arrays, array_layouts, temporary)
            commit(temporary, final, manifest, array_layouts, 1, Event())
    except BaseException:
        _directory.discard(temporary)
        raise
    return final


def _write_data(
    arrays: Mapping[str, LazyArray], array_layouts: list[ArrayLayout], temporary: Directory
) -> None:
    if isinstance(temporary, ObjectPath):
        chunks = Snapshot(arrays, array_layouts, 0)
        chunks.take(wait=False)
        write_part(temporary, array_layouts, chunks, 0, 1)
    else:
        write_streamed(temporary, array_layouts, lambda name, index: arrays[name].read(index))


def _new_dtypes(
    arrays: Mapping[str, LazyArray], ours: Mapping[str, str], patterns: Mapping[str, DTypeLike]
) -> dict[str, np.dtype]:
    """Return the new dtype of each array that is cast, by name."""
    table, dtypes = Table("dtype", tuple(patterns)), [floating(dtype) for dtype in patterns.values()]
    judge({table: ours}, ours.__getitem__)
    decided = table.decisions(ours, ours.__getitem__)
    return {
        name: dtypes[number]
        for name, (number, _) in decided.items()
        if jnp.issubdtype(arrays[name].dtype, jnp.floating)
    }
