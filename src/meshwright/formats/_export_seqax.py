"""A checkpoint or a tree -> seqax's format, which `readers/_seqax.py` describes.

The chunks are those in which the arrays lie, as seqax's are its shards. Written by TensorStore with
seqax's metadata, they are the same files, byte for byte.
"""

import itertools
import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from meshwright import tree
from meshwright.arrays import (
    Chosen,
    Index,
    LazyArray,
    Names,
    Source,
    TreeSource,
    chosen,
    readable,
    refuse_dtypes,
)
from meshwright.checkpoint import staged
from meshwright.durable import fsync_directory
from meshwright.errors import UsageError
from meshwright.formats.readers import store_of
from meshwright.process import on_lead
from meshwright.storage import Directory, ObjectPath, location, telling, tensorstore_for

# Of several threads each would keep the memory in which it compressed or wrote a chunk.
_ONE_AT_A_TIME = {"data_copy_concurrency": {"limit": 1}, "file_io_concurrency": {"limit": 1}}
_NONE = {"", ".", "..", ".zarray", ".zattrs", ".zgroup"}  # what no array, nor what is above it, is called
_BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}


def seqax_name(name: str) -> str:
    """Return `['params']['w']` for `params/w`: what `keystr` calls a leaf of dictionaries.

    A name of one part stays as it is, as it may be one of seqax's, whose keys are joined by nothing.
    """
    keys = tree.keys_of(name)
    return "".join(f"[{key!r}]" for key in keys) if len(keys) > 1 else name


def export_seqax(
    tree_or_source: tree.PyTree | Source,
    directory: str | Directory,
    *,
    step: int,
    names: Names | None = None,
) -> Directory:
    """Write `directory/{step}`, with ten digits, which seqax's `load_zarr` reads, and return where it is.

    Collective: process 0 reads and writes, a chunk at a time, and all return when it is done. What says
    that it is complete is written last.

    Args:
      tree_or_source: A tree whose arrays this process holds whole, or an opened checkpoint.
      directory: Local or not.
      step: What the checkpoint is called by.
      names: From our name of an array to the stored one, or to None, which leaves it out. Without it, that
        is what JAX's `keystr` calls a leaf of the tree; of a checkpoint, which does not say what were lists,
        `seqax_name`. For states of seqax's own classes it is `lambda name: name.replace("/", "")`.

    Raises:
      UsageError: The step is there, nothing is to be written, two arrays would have one name, zarr has no
        type for one, an array lies on other processes too, or TensorStore is not installed.
      CheckpointError: A piece of the checkpoint is damaged.
    """
    source, place = readable(tree_or_source), location(directory) / f"{step:010d}"
    given = source is tree_or_source
    arrays = chosen(source.arrays(), names or (seqax_name if given else _keystrs(tree_or_source).__getitem__))
    refuse_dtypes("seqax", arrays)
    if unfit := [name for name in arrays if "\\" in name or not _NONE.isdisjoint(name.split("/"))]:
        raise UsageError(f"zarr has no arrays called {unfit[0]!r}. Give `names` to call it otherwise.")

    def write() -> None:
        if isinstance(place, ObjectPath):
            _refuse_if_there(place)
            _write(place, arrays, source)
            return
        with staged(place) as unfinished:
            _refuse_if_there(place)
            _write(unfinished / place.name, arrays, source)
            (unfinished / place.name).rename(place)
            fsync_directory(place.parent)

    on_lead(write)
    return place


def _refuse_if_there(place: Directory) -> None:
    if not place.is_dir():
        return
    if isinstance(place, ObjectPath) and not (place / ".zattrs").is_file():
        raise UsageError(
            f"{place} is there, but not complete. If no process writes there any more, delete what is below "
            "it; or give another destination."
        )
    raise UsageError(f"{place} is there already; give another directory, or move it away.")


def _write(place: Directory, arrays: Mapping[str, Chosen], source: Source | TreeSource) -> None:
    context = tensorstore_for("seqax").Context(_ONE_AT_A_TIME)
    store = store_of(place, context)
    _put(store, ".zgroup", {"zarr_format": 2})
    for name, each in arrays.items():
        _write_array(store, context, name, source, each)
    _put(store, ".zattrs", {"write_completed": True})


def _keystrs(leaves: tree.PyTree) -> dict[str, str]:
    """Return what JAX calls each leaf, by our name."""
    paths = (jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(leaves)[0])
    return dict(zip(tree.leaf_names(leaves), paths, strict=True))


def _put(store: Any, name: str, document: dict[str, Any]) -> None:
    with telling(f"write {name} in {store.path}"):
        store.write(name, json.dumps(document, indent=4, sort_keys=True).encode()).result()  # as zarr does


def _write_array(store: Any, context: Any, name: str, source: Source | TreeSource, each: Chosen) -> None:
    shape, chunks = each.array.shape, _chunks(each.array)
    metadata = {
        "zarr_format": 2,
        "shape": shape,
        "chunks": chunks,
        "dtype": np.dtype(each.array.dtype).str,
        "compressor": _BLOSC if shape else None,
        "fill_value": None,
        "filters": None,
        "order": "C",
    }
    _put(store, f"{name}/.zarray", metadata)
    opened = _opened(store, name, context)
    for index in _indices(shape, chunks):
        _write_chunk(store, name, opened[index], source.read(each.name, index))


def _write_chunk(store: Any, name: str, place: Any, block: np.ndarray) -> None:
    """Write one chunk, which is not copied before, and is let go of before the next one is read."""
    with telling(f"write {name} in {store.path}"):
        place.write(block, can_reference_source_data_indefinitely=True).result()


def _opened(store: Any, name: str, context: Any) -> Any:
    spec = {"driver": "zarr", "store_data_equal_to_fill_value": True}
    with telling(f"open {name} in {store.path}"):
        opening = tensorstore_for("seqax").open(spec, kvstore=store / f"{name}/", open=True, context=context)
        return opening.result()


def _chunks(array: Any) -> tuple[int, ...]:
    """Return the shape of the pieces in which an array lies, on devices or in a checkpoint."""
    if getattr(array, "sharding", None) is not None:
        chunks = array.sharding.shard_shape(array.shape)
    elif isinstance(array, LazyArray):
        chunks = array.stored_chunks or array.chunk_shape
    else:
        chunks = array.shape
    return tuple(max(1, size) for size in chunks)


def _indices(shape: tuple[int, ...], chunks: tuple[int, ...]) -> list[Index]:
    cuts = [
        [slice(at, min(at + chunk, size)) for at in range(0, size, chunk)]
        for size, chunk in zip(shape, chunks, strict=True)
    ]
    return list(itertools.product(*cuts))
