"""One checkpoint made from another: of other dtypes, or of a part of it, in our format."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Event

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from meshwright import __version__
from meshwright.arrays import (
    Arrays,
    LazyArray,
    Opened,
    Source,
    cast_leaf,
    empty_of,
    floating,
    spelling_of,
)
from meshwright.checkpoint import _directory
from meshwright.checkpoint._format import (
    MANIFEST,
    ArrayLayout,
    Manifest,
    NativeSource,
    Snapshot,
    commit,
    layouts,
    write_part,
    write_streamed,
)
from meshwright.checkpoint._staging import told_of
from meshwright.errors import UsageError
from meshwright.patterns import Table, compiled, judge
from meshwright.storage import Directory, ObjectPath, location

PARAMETERS = ("^params/.*", "^target/.*", "^weights.*", ".*")
"""What the parameters are called, by us, by T5X, by seqax; of others all arrays are taken to be such."""

DTypes = DTypeLike | Mapping[str, DTypeLike]


def convert(
    source: Opened,
    destination: str | Directory,
    *,
    transform: Callable[[Source], Source] | None = None,
    dtype: DTypes | None = None,
    only: str | None = None,
) -> Directory:
    """Write a checkpoint into the directory of checkpoints `destination`, and return where it is.

    In constant memory (into an object store, in that of the largest chunk and some more), without
    devices; step and extra stay. It is committed as every save is. Of another format, the leaves are
    called as we call them, what is there besides arrays is left out, and the step is 0 where none is known.

    Args:
      source: an opened checkpoint.
      destination: local or not; made where it is not; no run may have it open.
      transform: returns what is to be written, of `source`: a map's `to_ours`, say, or a `subtree`. It
        is given the leaves as their format calls them; without it they are called as ours.
      dtype, only: as for `rewritten`, after that.

    Raises:
      UsageError: As `rewritten`, or the step is at the destination already.
      DamagedError: A piece of the source is damaged.
    """
    changed = transform(source) if transform else called_as_ours(source)
    taken = rewritten(changed, dtype=dtype, only=only).arrays()
    if isinstance(changed, NativeSource):
        arrays = [_rewritten(layout, taken) for layout in changed.manifest.layouts() if layout.name in taken]
    else:
        arrays = list(layouts(taken, 1))
    directory = _directory.of_checkpoints(location(destination))
    with _directory.lock(directory):
        _directory.probe(directory)
        if not isinstance(directory, ObjectPath):  # in a store it may be another's, as there are no locks
            _directory.remove_temporaries(directory)
        return _write(_manifest(source, taken), taken, arrays, directory)


def rewritten(source: Source, *, dtype: DTypes | None = None, only: str | None = None) -> Source:
    """Return a part of a checkpoint, or one of other dtypes, cast while it is read.

    Args:
      source: an opened checkpoint.
      dtype: of the parameters (`^params/.*`), or by patterns, of which the first that matches decides. Only
        arrays of floating-point numbers are converted. Where nothing is called so, they are what
        other systems' are called, or all arrays.
      only: a pattern of the arrays to take.

    Patterns go by the names of the source, or by ours, where its format spells them otherwise.

    Raises:
      UsageError: A pattern is none or decides nothing, or a dtype is none of floating-point numbers;
        when it is read, a number does not fit into its dtype.
    """
    arrays, spelling = source.arrays(), spelling_of(source)
    ours = {name: spelling.ours(name) for name in arrays}
    chosen = Table("only", (".*" if only is None else only,))
    judge({chosen: ours}, spelling.ours)
    taken = {name: other for name, other in ours.items() if chosen.first(name, other)}
    new = _new_dtypes(arrays, taken, _patterns(dtype, taken))
    held = {name: cast_leaf(name, arrays[name], new[name]) if name in new else arrays[name] for name in taken}
    empty = {name: node for name, node in empty_of(source).items() if chosen.first(name)}
    return Arrays(str(source), held, empty, spelling)


def _patterns(dtype: DTypes | None, ours: Mapping[str, str]) -> Mapping[str, DTypeLike]:
    if isinstance(dtype, Mapping):
        return dtype
    names = ours.values()
    called = next((each for each in PARAMETERS if any(map(compiled(each), names))), ".*")
    return {} if dtype is None else {called: dtype}


def called_as_ours(source: Source) -> Source:
    """Return `source` with the leaves called as we call them, where its format calls them otherwise.

    They are called as they were where two would get one name.
    """
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
    manifest: Manifest, taken: Mapping[str, LazyArray], arrays: list[ArrayLayout], directory: Directory
) -> Directory:
    final = _directory.step_path(directory, manifest.step)
    if final.exists() or (final / MANIFEST).is_file():
        raise UsageError(f"{final} is there already; give another destination, or move it away.")
    temporary = _directory.temporary_path(directory, manifest.step)
    temporary.mkdir()
    try:
        with told_of(final):
            _write_data(taken, arrays, temporary)
            commit(temporary, final, manifest, arrays, 1, Event())
    except BaseException:
        _directory.discard(temporary)
        raise
    return final


def _write_data(taken: Mapping[str, LazyArray], arrays: list[ArrayLayout], temporary: Directory) -> None:
    if isinstance(temporary, ObjectPath):
        chunks = Snapshot(taken, arrays, 0)
        chunks.take(wait=False)
        write_part(temporary, arrays, chunks, 0, 1)
    else:
        write_streamed(temporary, arrays, lambda name, index: taken[name].read(index))


def _new_dtypes(
    arrays: Mapping[str, LazyArray], ours: Mapping[str, str], patterns: Mapping[str, DTypeLike]
) -> dict[str, np.dtype]:
    """Return the dtype of each array that gets another."""
    table, dtypes = Table("dtype", tuple(patterns)), [floating(dtype) for dtype in patterns.values()]
    judge({table: ours}, ours.__getitem__)
    decided = table.decisions(ours, ours.__getitem__)
    return {
        name: dtypes[number]
        for name, (number, _) in decided.items()
        if jnp.issubdtype(arrays[name].dtype, jnp.floating)
    }


def _rewritten(layout: ArrayLayout, arrays: Mapping[str, LazyArray]) -> ArrayLayout:
    """Return the same chunks, of their new dtype and all written by one process."""
    return replace(layout, dtype=arrays[layout.name].dtype, writers=(0,) * len(layout.writers))
