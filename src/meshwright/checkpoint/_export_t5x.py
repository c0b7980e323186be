"""A checkpoint or a tree -> T5X's format, version 3, which `readers/_t5x.py` describes.

Arrays lie beside the tree, in zarr v2 with gzip, which T5X of every age reads; scalars, and what has no
values, in the tree.

Source: `checkpoints.py` of github.com/google-research/t5x.
"""

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from meshwright import tree
from meshwright.checkpoint._deflate import gzipped
from meshwright.checkpoint._export import Names, TreeSource, readable
from meshwright.checkpoint._format import fsync_directory
from meshwright.checkpoint._format._durable import write_whole
from meshwright.checkpoint._lazy import Index
from meshwright.checkpoint._msgpack import packed
from meshwright.checkpoint._object_path import location
from meshwright.checkpoint._source import Source
from meshwright.checkpoint._staging import staged
from meshwright.errors import UsageError
from meshwright.process import on_lead

_CHUNK_NBYTES = 64 << 20
_COMPRESSOR = {"id": "gzip", "level": 1}
_OURS = [
    (re.compile(r"params/(.*)"), r"target/\1"),
    (re.compile(r"step"), r"state/step"),
    (re.compile(r"opt_state/(.*)"), r"state/param_states/\1"),
    (re.compile(r"model_state/(.*)"), r"flax_mutables/\1"),
    (re.compile(r"((?:target|state|flax_mutables)/.*)"), r"\1"),
]
_STEP = "state/step"


def t5x_names(name: str) -> str | None:
    """Return what T5X calls one of our leaves; None for what it has no place for, such as the seed.

    Names of T5X stay as they are.
    """
    found = ((pattern.fullmatch(name), theirs) for pattern, theirs in _OURS)
    return next((match.expand(theirs) for match, theirs in found if match), None)


def export_t5x(
    tree_or_source: tree.PyTree | Source,
    directory: str | Path,
    *,
    step: int,
    names: Names = t5x_names,
    dtype: DTypeLike | None = None,
) -> Path:
    """Write `directory/checkpoint_{step}`, which T5X restores, and return its path.

    Collective: process 0 reads and writes, a few chunks at a time, and all return when it is done. The
    checkpoint appears when it is whole.

    Args:
      tree_or_source: A tree whose arrays this process holds whole, or an opened checkpoint.
      step: What the checkpoint is called by, and what T5X will take for the step of its state.
      names: From our name of an array to T5X's, or to None, which leaves it out.
      dtype: What floating-point parameters, `target/…`, are cast to. The optimizer's state stays as it is.

    Raises:
      UsageError: The step is there already; nothing, or no parameter, is to be written; two arrays would
        have one name or one directory; or an array lies on other processes too.
      DamagedError: A piece of the checkpoint is damaged.
    """
    final = location(directory) / f"checkpoint_{step}"
    if not isinstance(final, Path):
        raise UsageError(f"{directory} is in an object store: export into a directory, and copy the files.")
    source = readable(tree_or_source)
    ours = _renamed(source.arrays(), names)
    dtypes = {new: _dtype(new, source.arrays()[name].dtype, dtype) for new, name in ours.items()}

    def write() -> str:
        with staged(final) as place:
            if final.exists():
                raise UsageError(
                    f"{final} is there already; give another directory or step, or move it away."
                )
            made = place / final.name
            made.mkdir()
            write_whole(made / "checkpoint", packed(_written(source, ours, dtypes, made, step)))
            fsync_directory(made)
            made.rename(final)
            fsync_directory(final.parent)
        return str(final)

    return Path(on_lead(write))


def _renamed(arrays: Mapping[str, Any], names: Names) -> dict[str, str]:
    """Return our names of the arrays by T5X's.

    Raises:
      UsageError: They do not make a state of T5X.
    """
    theirs = {name: new for name in arrays if (new := names(name)) is not None}
    if not any(new.startswith("target/") for new in theirs.values()):
        some = ", ".join(list(arrays)[:5]) or "nothing"
        raise UsageError(
            f"there are no parameters among {some}: T5X has them under target/. Give `names`, ours to T5X's."
        )
    ours: dict[str, str] = {}
    folders: dict[str, str] = {}
    for name, new in theirs.items():
        if (other := folders.setdefault(_folder(new), name)) != name:
            raise UsageError(f"{other} and {name} would lie in one directory, {_folder(new)}: give `names`.")
        ours[new] = name
    return ours


def _folder(name: str) -> str:
    return name.replace("/", ".").replace("%2F", ".").replace("%25", "%")


def _dtype(name: str, saved: np.dtype, wanted: DTypeLike | None) -> np.dtype:
    casts = wanted is not None and name.startswith("target/") and jnp.issubdtype(saved, jnp.floating)
    return np.dtype(wanted) if casts else np.dtype(saved)


def _written(
    source: Source | TreeSource,
    ours: Mapping[str, str],
    dtypes: Mapping[str, np.dtype],
    directory: Path,
    step: int,
) -> dict[str, Any]:
    """Write the arrays that lie beside the tree, and return the tree."""
    leaves: dict[str, Any] = {_STEP: np.array(step, np.int32)}
    arrays = source.arrays()
    for new, name in sorted(ours.items()):
        shape, dtype = arrays[name].shape, dtypes[new]
        piece = getattr(arrays[name], "chunk_shape", shape)

        def read(index: Index, name: str = name, dtype: np.dtype = dtype) -> np.ndarray:
            return np.asarray(source.read(name, index), dtype)

        if shape and math.prod(shape):
            leaves[new] = _write_array(directory / _folder(new), shape, piece, dtype, read)
        elif new != _STEP:
            leaves[new] = read((slice(None),) * len(shape))
    state = tree.nested(leaves)
    return {"version": 3, "optimizer": {"target": {}, **state}}


def _write_array(
    folder: Path,
    shape: tuple[int, ...],
    piece: tuple[int, ...],
    dtype: np.dtype,
    read: Callable[[Index], np.ndarray],
) -> dict[str, Any]:
    """Write an array, which lies in such pieces, and return the spec by which T5X finds it."""
    chunks = chunk_shape(piece, _CHUNK_NBYTES // dtype.itemsize)
    folder.mkdir()

    # One after the other, as each that is read takes up to three times its bytes while that lasts.
    for place in itertools.product(
        *(range(size // chunk) for size, chunk in zip(shape, chunks, strict=True))
    ):
        index = tuple(slice(at * size, (at + 1) * size) for at, size in zip(place, chunks, strict=True))
        write_whole(folder / ".".join(map(str, place)), _compressed(read(index)))
    metadata = {"chunks": list(chunks), "compressor": _COMPRESSOR, "shape": list(shape)}
    write_whole(folder / ".zarray", json.dumps(metadata | _zarr(dtype)).encode())
    fsync_directory(folder)
    kvstore = {"driver": "file", "path": f"{folder.name}/"}
    return {"driver": "zarr", "dtype": dtype.name, "kvstore": kvstore, "metadata": metadata}


def _zarr(dtype: np.dtype) -> dict[str, Any]:
    # What NumPy has not itself, TensorStore calls by name.
    name = dtype.name if dtype.kind == "V" else dtype.str
    constant = {"fill_value": None, "filters": None, "order": "C", "zarr_format": 2}
    return {"dtype": name, "dimension_separator": ".", **constant}


def chunk_shape(shape: tuple[int, ...], num_values: int) -> tuple[int, ...]:
    """Return chunks of no more than so many values, as T5X cuts them: its `_choose_chunk_shape`.

    The largest dimension, the first of equal ones, is lowered to its next smaller divisor until it is enough.
    """
    chunks = list(shape)
    while math.prod(chunks) > num_values:
        dim = chunks.index(max(chunks))
        chunks[dim] = next(size for size in range(chunks[dim] - 1, 0, -1) if shape[dim] % size == 0)
    return tuple(chunks)


def _compressed(chunk: np.ndarray) -> Iterator[bytes]:
    # Through uint8, as NumPy gives no buffer of the dtypes of ml_dtypes.
    return gzipped(np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data, _COMPRESSOR["level"])
