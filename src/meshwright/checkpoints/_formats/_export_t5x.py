"""Exports to T5X's format, version 3, which `readers/_t5x.py` describes.

Arrays are stored beside the tree, in zarr v2 with gzip, which all versions of T5X read. Scalars and arrays
without elements are stored in the tree. That is Flax's msgpack, which `readers/_flax_msgpack.py` describes;
the thirty lines that write it here save users of `--to t5x` the installation of a library.

Source: `checkpoints.py` of github.com/google-research/t5x.
"""

import json
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from meshwright.base._internal import fsync_directory, tree, write_one_of_many, write_whole
from meshwright.checkpoints._arrays._cast import converted, floating
from meshwright.checkpoints._arrays._chunks import cuts
from meshwright.checkpoints._arrays._lazy import Index
from meshwright.checkpoints._arrays._source import Source, empty_of
from meshwright.checkpoints._exports import (
    Chosen,
    Names,
    TreeSource,
    chosen,
    is_of_numpy,
    local,
    readable,
    refuse_dtypes,
    staged,
)
from meshwright.checkpoints._formats.readers._zarr2 import gzipped
from meshwright.errors import UsageError, listed
from meshwright.processes._internal import on_lead

_CHUNK_NBYTES = 64 << 20
_COMPRESSOR = {"id": "gzip", "level": 1}
_OURS = [
    (re.compile(r"params/(.*)"), r"target/\1"),
    (re.compile(r"step"), r"state/step"),
    (re.compile(r"opt_state/(.*)"), r"state/param_states/\1"),
    (re.compile(r"model_state/(.*)"), r"flax_mutables/\1"),
    (re.compile(r"((?:target|state|flax_mutables)/.*)"), r"\1"),
]
_STEP, _LAST_STEP = "state/step", (1 << 31) - 1
_NOT_OF_NUMPY = {
    "bfloat16",
    "int4",
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz"),
}
"""The dtypes that TensorStore has besides NumPy's, under its names."""


def t5x_names(name: str) -> str | None:
    """Return T5X's name of a leaf; None if T5X has no place for it, as for the seed.

    Example:
      >>> mw.checkpoints._internal.t5x_names("params/encoder/w"), mw.checkpoints._internal.t5x_names("seed")
      ('target/encoder/w', None)
    """
    matches = ((pattern.fullmatch(name), theirs) for pattern, theirs in _OURS)
    return next((match.expand(theirs) for match, theirs in matches if match), None)


def export_t5x(
    tree_or_source: tree.PyTree | Source,
    directory: str | Path,
    *,
    step: int,
    names: Names = t5x_names,
    dtype: DTypeLike | None = None,
) -> Path:
    """Write a checkpoint that T5X restores, `directory/checkpoint_800`, and return its path.

    Collective: process 0 reads and writes, a few chunks at a time, and all processes return when it is done.
    The checkpoint appears when it is complete.

    Args:
      tree_or_source: A tree whose arrays this process holds whole, or an opened checkpoint.
      directory: The local directory of checkpoints; it is created if needed.
      step: The step, which is part of the name, and the step of the state that T5X restores.
      names: Returns T5X's name for an array's Meshwright name, or None, which leaves the array out.
      dtype: The dtype to cast floating-point parameters, `target/…`, to. The optimizer's state stays as it
        is.

    Raises:
      UsageError: The step exists already or is not a 32-bit number; no array is left; two arrays would get
        the same name or directory; T5X lacks the dtype of one; a value does not fit into `dtype`; or an array
        lies on other processes too.
      DamagedError: A part of the checkpoint is damaged.

    Example:
      >>> path = mw.checkpoints.export_t5x({"params": {"w": jnp.ones(3)}}, "exported", step=800)
      >>> path.name, list(mw.checkpoints.open_source("exported").arrays())
      ('checkpoint_800', ['state/step', 'target/w'])
    """
    final = local(directory) / f"checkpoint_{step}"
    if not 0 <= step <= _LAST_STEP:
        raise UsageError(f"step {step} is not valid in T5X, where steps are from 0 to {_LAST_STEP}.")
    source = readable(tree_or_source)
    arrays = _chosen(source.arrays(), names)
    # T5X restores a state only if it has all entries, including those without arrays.
    empty = {theirs: node for name, node in empty_of(source).items() if (theirs := names(name))}
    rest = {**empty, _STEP: np.array(step, np.int32)}
    dtypes = _dtypes(arrays, None if dtype is None else floating(dtype))

    def write() -> str:
        with staged(final) as staging:
            if final.exists():
                raise UsageError(f"{final} exists already; give another directory or step, or move it away.")
            unfinished = staging / final.name
            unfinished.mkdir()
            write_whole(unfinished / "checkpoint", packed(_tree_of(source, arrays, dtypes, rest, unfinished)))
            unfinished.rename(final)
            fsync_directory(final.parent)
        return str(final)

    return Path(on_lead(write))


def _chosen(saved: Mapping[str, Any], names: Names) -> dict[str, Chosen]:
    """Return the arrays to write, by T5X's names."""
    if all(names(name) is None for name in saved):
        raise UsageError(
            f"there are no parameters for T5X among {listed(saved) or 'nothing'}: they lie below target/. "
            "Give `names` that return T5X's names, or a map to `convert --map`."
        )
    arrays = chosen(saved, names)
    folders: dict[str, str] = {}
    for name, choice in arrays.items():
        if (other := folders.setdefault(_folder(name), choice.name)) != choice.name:
            raise UsageError(
                f"{other} and {choice.name} would get the same directory, {_folder(name)}: give `names`."
            )
        above = ("/".join(name.split("/")[:depth]) for depth in range(1, name.count("/") + 1))
        if leaf := next((arrays[prefix] for prefix in above if prefix in arrays), None):
            raise UsageError(f"{choice.name} would lie below {leaf.name}, which is an array: give `names`.")
    return arrays


def _folder(name: str) -> str:
    return ".".join(tree.keys_of(name)).replace("/", ".")


def _dtypes(arrays: Mapping[str, Chosen], target: np.dtype | None) -> dict[str, np.dtype]:
    """Return the dtype that each array is written in."""
    refuse_dtypes("T5X", arrays, _accepts)
    saved = {name: np.dtype(choice.array.dtype) for name, choice in arrays.items()}
    return {
        name: target
        if target and name.startswith("target/") and jnp.issubdtype(dtype, jnp.floating)
        else dtype
        for name, dtype in saved.items()
    }


def _accepts(dtype: Any) -> bool:
    # T5X takes uint16 for bfloat16 in the form of version 2, and refuses it.
    return (is_of_numpy(dtype) and dtype.name != "uint16") or dtype.name in _NOT_OF_NUMPY


def _tree_of(
    source: Source | TreeSource,
    arrays: Mapping[str, Chosen],
    dtypes: Mapping[str, np.dtype],
    rest: Mapping[str, Any],
    directory: Path,
) -> dict[str, Any]:
    """Write the arrays that are stored beside the tree, and return the tree, with `rest` in it."""
    leaves = dict(rest)
    for name, choice in sorted(arrays.items()):
        shape, dtype = choice.array.shape, dtypes[name]
        piece = getattr(choice.array, "chunk_shape", shape)

        def read(index: Index, name: str = choice.name, dtype: np.dtype = dtype) -> np.ndarray:
            return converted(name, np.asarray(source.read(name, index)), dtype)

        if shape and math.prod(shape):
            leaves[name] = _write_array(directory / _folder(name), shape, piece, dtype, read)
        elif name != _STEP:
            leaves[name] = read((slice(None),) * len(shape))
    state = tree.nested(leaves)
    return {"version": 3, "optimizer": {"target": {}, **state}}


def _write_array(
    folder: Path,
    shape: tuple[int, ...],
    piece: tuple[int, ...],
    dtype: np.dtype,
    read: Callable[[Index], np.ndarray],
) -> dict[str, Any]:
    """Write an array, which is stored in such pieces, and return the spec by which T5X finds it."""
    chunks = chunk_shape(piece, _CHUNK_NBYTES // dtype.itemsize)
    folder.mkdir()

    # One chunk after the other, because reading one takes up to three times its size in memory.
    for index in cuts(shape, chunks):
        cell = (part.start // size for part, size in zip(index, chunks, strict=True))
        # Viewed as uint8, because NumPy has no buffers for the dtypes of ml_dtypes.
        data = np.ascontiguousarray(read(index)).reshape(-1).view(np.uint8).data
        write_one_of_many(folder / ".".join(map(str, cell)), gzipped(data, _COMPRESSOR["level"]))
        # Otherwise the next chunk would be read while this one is in memory.
        del data
    metadata = {"chunks": list(chunks), "compressor": _COMPRESSOR, "shape": list(shape)}
    write_whole(folder / ".zarray", json.dumps(metadata | _zarr(dtype)).encode())
    kvstore = {"driver": "file", "path": f"{folder.name}/"}
    return {"driver": "zarr", "dtype": dtype.name, "kvstore": kvstore, "metadata": metadata}


def _zarr(dtype: np.dtype) -> dict[str, Any]:
    name = dtype.str if is_of_numpy(dtype) else dtype.name
    constant = {"fill_value": None, "filters": None, "order": "C", "zarr_format": 2}
    return {"dtype": name, "dimension_separator": ".", **constant}


def chunk_shape(shape: tuple[int, ...], num_values: int) -> tuple[int, ...]:
    """Return the shape of chunks with at most `num_values` values, as T5X's `_choose_chunk_shape` does.

    Until that holds, the largest dimension (the first of equal ones) is lowered to its next smaller divisor.
    """
    chunks = list(shape)
    while math.prod(chunks) > num_values:
        dim = chunks.index(max(chunks))
        chunks[dim] = next(size for size in range(chunks[dim] - 1, 0, -1) if shape[dim] % size == 0)
    return tuple(chunks)


_ARRAY, _SCALAR = 1, 3
_NIL, _INT64, _BYTES, _TEXT, _LIST, _MAP, _EXT = 0xC0, 0xD3, 0xC6, 0xDB, 0xDD, 0xDF, 0xC9


def packed(value: Any) -> bytes:
    """Return dictionaries, lists, texts, integers, None and NumPy arrays as msgpack."""
    match value:
        case None:
            return bytes([_NIL])
        case int():
            return bytes([value]) if 0 <= value < 0x80 else struct.pack(">Bq", _INT64, value)
        case bytes():
            return struct.pack(">BI", _BYTES, len(value)) + value
        case str():
            text = value.encode()
            return _head(0xA0, 0x20, _TEXT, len(text)) + text
        case Mapping():
            pairs = (packed(key) + packed(item) for key, item in value.items())
            return _head(0x80, 0x10, _MAP, len(value)) + b"".join(pairs)
        case Sequence():
            return _head(0x90, 0x10, _LIST, len(value)) + b"".join(map(packed, value))
        case np.ndarray():
            content = packed([list(value.shape), value.dtype.name, value.tobytes()])
            return struct.pack(">BIB", _EXT, len(content), _ARRAY if value.ndim else _SCALAR) + content
    raise TypeError(f"{type(value)} cannot be written as msgpack")


def _head(short: int, limit: int, long: int, length: int) -> bytes:
    """Return the head of a value: kind and length in one byte if it is short, otherwise in five."""
    return bytes([short | length]) if length < limit else struct.pack(">BI", long, length)
