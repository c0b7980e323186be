"""Exports to safetensors, as the tools of Hugging Face read it.

    model.safetensors                      if one file is enough; otherwise
    model-00001-of-00002.safetensors       some of the arrays
    model-00002-of-00002.safetensors       the others
    model.safetensors.index.json           {"metadata": {"total_size": bytes}, "weight_map": {array: file}}

A file has a header and the bytes of the arrays:

    │ N, the length of the header: 8 bytes, little-endian                              │
    │ header: JSON, padded with blanks to a multiple of 8                              │  N bytes
    │   {"__metadata__": {"format": "pt"},                                             │
    │    "params.w": {"dtype": "BF16", "shape": [64, 128], "data_offsets": [0, 16384]}}│
    │ the arrays' raw little-endian bytes, row-major, one after the other              │

Offsets count from the end of the header. Arrays with the widest dtypes come first, so that each array begins
at a multiple of its item size, as readers that memory-map the file need it.

Sources: github.com/huggingface/safetensors, README ("Format") and `Dtype` in safetensors/src/tensor.rs; the
  loaders of the `transformers` and `huggingface_hub` packages, which look for the single file first and then
  for the index.
"""

import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.base._internal import fsync_directory, tree, write_whole
from meshwright.checkpoints._arrays._cast import converted, floating, type_name
from meshwright.checkpoints._arrays._chunks import slabs
from meshwright.checkpoints._arrays._source import Source
from meshwright.checkpoints._exports import Names, TreeSource, local, readable, staged
from meshwright.errors import UsageError, listed
from meshwright.processes._internal import on_lead

LENGTH = struct.Struct("<Q")
METADATA = "__metadata__"
"""The header's entry for text by name; all others are arrays."""
_ALIGNMENT = 8

DTYPES = {
    "bool": "BOOL",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}
"""The format's names for dtypes of NumPy and ml_dtypes. The `safetensors` package only maps NumPy's."""

Structs = Mapping[str, jax.ShapeDtypeStruct]


def array_nbytes(array: jax.ShapeDtypeStruct) -> int:
    """Return the size of an array in the file, in bytes."""
    return math.prod(array.shape) * array.dtype.itemsize


def write_file(
    path: Path,
    arrays: Structs,
    read: Callable[[str], Iterable[np.ndarray]],
    metadata: Mapping[str, str],
) -> None:
    """Write one file and flush it to disk; `read` yields the parts of an array in row-major order."""
    ordered = dict(sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize))
    with path.open("wb") as file:
        file.write(_header(ordered, metadata))
        for name in ordered:
            for part in read(name):
                # Viewed as uint8, because NumPy has no buffers for the dtypes of ml_dtypes.
                file.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def _header(arrays: Structs, metadata: Mapping[str, str]) -> bytes:
    entries, start = {}, 0
    for name, array in arrays.items():
        end = start + array_nbytes(array)
        dtype = DTYPES[array.dtype.name]
        entries[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps({METADATA: dict(metadata), **entries}, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // _ALIGNMENT) * _ALIGNMENT)
    return LENGTH.pack(len(text)) + text


SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

_NARROW = {"int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8"}
# Loaders refuse a file without a format that they know.
_METADATA = {"format": "pt"}


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
    path = local(directory)
    source = readable(tree_or_source)
    ours, arrays = _plan(
        source.arrays(),
        names or (lambda name: name.replace("/", ".")),
        None if dtype is None else floating(dtype),
    )
    head = _checked_metadata(metadata or {})

    def write() -> list[str]:
        return _write(source, path, ours, arrays, max_shard_bytes, head)

    return [Path(path) for path in on_lead(write)]


def _plan(saved: Mapping[str, Any], names: Names, dtype: np.dtype | None) -> tuple[dict[str, str], Structs]:
    """Return, by the name in the file, the Meshwright name of each array, and its shape and dtype there."""
    theirs = {name: names(name) for name in saved}
    new_names = {name: new for name, new in theirs.items() if new is not None}
    arrays = {
        name: jax.ShapeDtypeStruct(saved[name].shape, _dtype_in_file(saved[name].dtype, dtype))
        for name in new_names
    }
    _check(new_names, arrays)
    return {new: name for name, new in new_names.items()}, {
        new: arrays[name] for name, new in new_names.items()
    }


def _dtype_in_file(saved: Any, target: np.dtype | None) -> Any:
    if target is not None and jnp.issubdtype(saved, jnp.floating):
        return target
    return np.dtype(_NARROW[saved.name]) if saved.name in _NARROW else saved


def _check(new_names: Mapping[str, str], arrays: Structs) -> None:
    if not new_names:
        raise UsageError("there is nothing to export: no array was chosen.")
    sharing: dict[str, list[str]] = {}
    for name, new in new_names.items():
        sharing.setdefault(new, []).append(name)
    doubles = {new: several for new, several in sharing.items() if len(several) > 1}
    problems = [f"{listed(several)} would all be called {new}" for new, several in doubles.items()]
    problems += [f"{name} cannot be called {new}" for name, new in new_names.items() if new == METADATA]
    problems += [
        f"{name} is of type {type_name(array)}, which safetensors has not"
        for name, array in arrays.items()
        if array.dtype.name not in DTYPES
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
    arrays: Structs,
    max_shard_bytes: int,
    metadata: Mapping[str, str],
) -> list[str]:
    """Write all files to a staging directory, then move them, after the index, which shows missing ones."""
    shards = _shards(arrays, max_shard_bytes)
    with staged(directory / SINGLE) as staging:
        _refuse_to_mix(directory)
        for name, shard in shards.items():
            write_file(staging / name, shard, _reader(source, ours, shard), metadata)
        if len(shards) > 1:
            # The index comes first: it lists files that do not exist yet, so that loaders fail instead of
            # reading a part.
            write_whole(directory / INDEX, _index(shards))
        for name in shards:
            (staging / name).rename(directory / name)
        fsync_directory(directory)
    return [str(directory / name) for name in shards]


def _refuse_to_mix(directory: Path) -> None:
    present = sorted(path.name for path in directory.glob("model*.safetensors*"))
    if present:
        raise UsageError(
            f"{directory} has {listed(present)} already, and loaders would mix them with new ones. "
            "Remove them, or export into another directory."
        )


def _shards(arrays: Structs, max_bytes: int) -> dict[str, Structs]:
    """Distribute the arrays to files, in order."""
    shards: list[dict[str, jax.ShapeDtypeStruct]] = [{}]
    room = max_bytes
    for name, array in arrays.items():
        nbytes = array_nbytes(array)
        if shards[-1] and nbytes > room:
            shards.append({})
            room = max_bytes
        shards[-1][name] = array
        room -= nbytes
    if len(shards) == 1:
        return {SINGLE: shards[0]}
    return {f"model-{n:05d}-of-{len(shards):05d}.safetensors": shard for n, shard in enumerate(shards, 1)}


def _reader(
    source: Source | TreeSource, ours: Mapping[str, str], arrays: Structs
) -> Callable[[str], Iterator[np.ndarray]]:
    """Return a function that yields the parts of an array, given its name in the file."""

    def read(name: str) -> Iterator[np.ndarray]:
        dtype = arrays[name].dtype
        for index in slabs(arrays[name].shape, dtype.itemsize):
            yield converted(name, source.read(ours[name], index), dtype)

    return read


def _index(shards: Mapping[str, Structs]) -> bytes:
    total = sum(array_nbytes(array) for shard in shards.values() for array in shard.values())
    weight_map = {name: file for file, shard in shards.items() for name in shard}
    return json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2).encode()
