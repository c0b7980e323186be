"""Exports to safetensors, as the tools of Hugging Face read it.

    model.safetensors                      if one file is enough; otherwise
    model-00001-of-00002.safetensors       some of the arrays
    model-00002-of-00002.safetensors       the others
    model.safetensors.index.json           {"metadata": {"total_size": bytes}, "weight_map": {array: file}}

Source: the loaders of the `transformers` and `huggingface_hub` packages, which look for the single
file first and then for the index.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.base._internal import fsync_directory, tree, write_whole
from meshwright.checkpoints._arrays._cast import converted, floating
from meshwright.checkpoints._arrays._chunks import slabs
from meshwright.checkpoints._arrays._export_input import Names, TreeSource, local, readable
from meshwright.checkpoints._arrays._keys import type_name
from meshwright.checkpoints._arrays._source import Source
from meshwright.checkpoints._formats import _safetensors
from meshwright.checkpoints._staging import staged
from meshwright.errors import UsageError, listed
from meshwright.processes._internal import on_lead

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

_NARROW = {"int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8"}
_METADATA = {"format": "pt"}  # loaders refuse a file without a format that they know


def export_safetensors(
    tree_or_source: tree.PyTree | Source,
    directory: str | Path,
    *,
    max_shard_bytes: int = 5_000_000_000,
    names: Names | None = None,
    dtype: Any = None,
    metadata: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write arrays as safetensors files, with an index if there are several, and return their paths.

    Collective: process 0 reads and writes, a part of an array at a time, and all processes return when it is
    done. The files appear in the directory, beside other files, when all of them are complete.

    Args:
      tree_or_source: A tree whose arrays this process holds whole, or an opened checkpoint.
      directory: The local directory to write to; it is created if needed.
      max_shard_bytes: The most bytes of arrays in one file; a single larger array gets a file of its own.
      names: Returns the name in the file for an array's Meshwright name, or None, which leaves the array out.
        By default `/` becomes `.`.
      dtype: The dtype to cast floating-point arrays to. Others stay as they are, except integers narrower
        than a byte, which the format lacks: they become int8 or uint8.
      metadata: Text to store in the files, in addition to `{"format": "pt"}`, which loaders require.

    Raises:
      UsageError: No array is left, two arrays would get the same name, the format lacks the dtype of one, an
        array lies on other processes too, or `directory` has such files already or cannot be written to.
      DamagedError: A part of the checkpoint is damaged.

    Example:
      >>> paths = mw.checkpoints.export_safetensors({"layer": {"w": jnp.ones(3)}}, "exported")
      >>> [path.name for path in paths]
      ['model.safetensors']
      >>> list(mw.checkpoints.open_source("exported").arrays())
      ['layer.w']
    """
    place = local(directory)
    source = readable(tree_or_source)
    ours, arrays = _plan(source.arrays(), names or _with_dots, None if dtype is None else floating(dtype))
    head = _checked_metadata(metadata or {})

    def write() -> list[str]:
        return _write(source, place, ours, arrays, max_shard_bytes, head)

    return [Path(path) for path in on_lead(write)]


def _with_dots(name: str) -> str:
    return name.replace("/", ".")


def _plan(
    saved: Mapping[str, Any], names: Names, dtype: np.dtype | None
) -> tuple[dict[str, str], _safetensors.Structs]:
    """Return, by the name in the file, the Meshwright name of each array, and its shape and dtype there."""
    theirs = {name: names(name) for name in saved}
    wanted = {name: new for name, new in theirs.items() if new is not None}
    arrays = {
        name: jax.ShapeDtypeStruct(saved[name].shape, _dtype_in_file(saved[name].dtype, dtype))
        for name in wanted
    }
    _check(wanted, arrays)
    return {new: name for name, new in wanted.items()}, {new: arrays[name] for name, new in wanted.items()}


def _dtype_in_file(saved: Any, wanted: np.dtype | None) -> Any:
    if wanted is not None and jnp.issubdtype(saved, jnp.floating):
        return wanted
    return np.dtype(_NARROW[saved.name]) if saved.name in _NARROW else saved


def _check(wanted: Mapping[str, str], arrays: _safetensors.Structs) -> None:
    if not wanted:
        raise UsageError("there is nothing to export: no array was chosen.")
    sharing: dict[str, list[str]] = {}
    for name, new in wanted.items():
        sharing.setdefault(new, []).append(name)
    doubles = {new: several for new, several in sharing.items() if len(several) > 1}
    problems = [f"{listed(several)} would all be called {new}" for new, several in doubles.items()]
    problems += [
        f"{name} cannot be called {new}" for name, new in wanted.items() if new == _safetensors.METADATA
    ]
    problems += [
        f"{name} is of type {type_name(array)}, which safetensors has not"
        for name, array in arrays.items()
        if array.dtype.name not in _safetensors.DTYPES
    ]
    if problems:
        raise UsageError(
            "cannot export to safetensors:\n  " + "\n  ".join(problems) + "\nGive `names` to call arrays "
            "otherwise or to leave some out (None), or a `dtype` to convert to."
        )


def _checked_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    unfit = [key for key, value in metadata.items() if not isinstance(key, str) or not isinstance(value, str)]
    if unfit:
        raise UsageError(
            f"the metadata of safetensors is text, but that of {listed(map(str, unfit))} is not."
        )
    return _METADATA | dict(metadata)


def _write(
    source: Source | TreeSource,
    directory: Path,
    ours: Mapping[str, str],
    arrays: _safetensors.Structs,
    max_shard_bytes: int,
    metadata: Mapping[str, str],
) -> list[str]:
    """Write all files to a staging directory, then move them, after the index, which shows missing ones."""
    shards = _shards(arrays, max_shard_bytes)
    with staged(directory / SINGLE) as place:
        _refuse_to_mix(directory)
        for name, shard in shards.items():
            _safetensors.write_file(place / name, shard, _reader(source, ours, shard), metadata)
        if len(shards) > 1:
            write_whole(directory / INDEX, _index(shards))
        for name in shards:
            (place / name).rename(directory / name)
        fsync_directory(directory)
    return [str(directory / name) for name in shards]


def _refuse_to_mix(directory: Path) -> None:
    there = sorted(path.name for path in directory.glob("model*.safetensors*"))
    if there:
        raise UsageError(
            f"{directory} has {listed(there)} already, and loaders would mix them with new ones. "
            "Remove them, or export into another directory."
        )


def _shards(arrays: _safetensors.Structs, max_bytes: int) -> dict[str, _safetensors.Structs]:
    """Distribute the arrays to files, in order."""
    shards: list[dict[str, jax.ShapeDtypeStruct]] = [{}]
    room = max_bytes
    for name, array in arrays.items():
        nbytes = _safetensors.nbytes(array)
        if shards[-1] and nbytes > room:
            shards.append({})
            room = max_bytes
        shards[-1][name] = array
        room -= nbytes
    if len(shards) == 1:
        return {SINGLE: shards[0]}
    return {f"model-{n:05d}-of-{len(shards):05d}.safetensors": shard for n, shard in enumerate(shards, 1)}


def _reader(
    source: Source | TreeSource, ours: Mapping[str, str], arrays: _safetensors.Structs
) -> Callable[[str], Iterator[np.ndarray]]:
    """Return a function that yields the parts of an array, given its name in the file."""

    def read(name: str) -> Iterator[np.ndarray]:
        dtype = arrays[name].dtype
        for index in slabs(arrays[name].shape, dtype.itemsize):
            yield converted(name, source.read(ours[name], index), dtype)

    return read


def _index(shards: Mapping[str, _safetensors.Structs]) -> bytes:
    total = sum(_safetensors.nbytes(array) for shard in shards.values() for array in shard.values())
    weight_map = {name: file for file, shard in shards.items() for name in shard}
    return json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2).encode()
