"""A checkpoint or a tree -> seqax's format, which `readers/_seqax.py` describes.

The chunks are those in which the arrays lie, as seqax's are its shards. Written by TensorStore with
seqax's metadata, they are the same files, byte for byte.
"""

import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from meshwright import tree
from meshwright.arrays import (
    Chosen,
    LazyArray,
    Names,
    Source,
    TreeSource,
    chosen,
    cuts,
    readable,
    refuse_dtypes,
)
from meshwright.checkpoint import staged
from meshwright.durable import fsync_directory
from meshwright.errors import UsageError
from meshwright.formats.readers import store_of, telling, tensorstore_for
from meshwright.process import on_lead
from meshwright.storage import Directory, ObjectPath, location

# Of several threads each would keep the memory in which it compressed or wrote a chunk.
_ONE_AT_A_TIME = {"data_copy_concurrency": {"limit": 1}, "file_io_concurrency": {"limit": 1}}
_NONE = {"", ".", "..", ".zarray", ".zattrs", ".zgroup"}  # what no array, nor what is above it, is called
_ARRAY = ".zarray"
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
    writer = _Writer(place)
    writer.put(".zgroup", {"zarr_format": 2})
    for name, each in arrays.items():
        _write_array(writer, name, source, each)
    writer.put(".zattrs", {"write_completed": True})


class _Writer:
    """Writes by TensorStore: to a disk or, for a place in a store, into memory, from where it is put."""

    def __init__(self, place: Directory):
        tensorstore = tensorstore_for("seqax")
        self.context, self._place = tensorstore.Context(_ONE_AT_A_TIME), place
        if isinstance(place, ObjectPath):
            self._store = tensorstore.KvStore.open("memory://", context=self.context).result()
        else:
            self._store = store_of(place, self.context)

    def put(self, name: str, document: dict[str, Any]) -> None:
        with telling(f"write {name} in {self._place}"):
            content = json.dumps(document, indent=4, sort_keys=True).encode()  # as zarr does
            self._store.write(name, content).result()
        if not name.endswith(_ARRAY):  # which is looked for when the array is opened
            self._hand_on()

    def opened(self, name: str) -> Any:
        """Return the array whose metadata were put, to write to."""
        spec = {"driver": "zarr", "store_data_equal_to_fill_value": True}
        with telling(f"open {name} in {self._place}"):
            kvstore = self._store / f"{name}/"
            opening = tensorstore_for("seqax").open(spec, kvstore=kvstore, open=True, context=self.context)
            return opening.result()

    def put_chunk(self, name: str, place: Any, block: np.ndarray) -> None:
        """Write one chunk, which is not copied before, and is let go of before the next one is read."""
        with telling(f"write {name} in {self._place}"):
            place.write(block, can_reference_source_data_indefinitely=True).result()
        self._hand_on()

    def _hand_on(self) -> None:
        """Put what is in memory where it belongs."""
        if not isinstance(self._place, ObjectPath):
            return
        for key in self._store.list().result():
            (self._place / key.decode()).put(self._store.read(key).result().value)
            self._store.write(key, None).result()


def _keystrs(leaves: tree.PyTree) -> dict[str, str]:
    """Return what JAX calls each leaf, by our name."""
    paths = (jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(leaves)[0])
    return dict(zip(tree.leaf_names(leaves), paths, strict=True))


def _write_array(writer: _Writer, name: str, source: Source | TreeSource, each: Chosen) -> None:
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
    writer.put(f"{name}/{_ARRAY}", metadata)
    opened = writer.opened(name)
    for index in cuts(shape, chunks):
        writer.put_chunk(name, opened[index], source.read(each.name, index))


def _chunks(array: Any) -> tuple[int, ...]:
    """Return the shape of the pieces in which an array lies, on devices or in a checkpoint."""
    if getattr(array, "sharding", None) is not None:
        chunks = array.sharding.shard_shape(array.shape)
    elif isinstance(array, LazyArray):
        chunks = array.stored_chunks or array.chunk_shape
    else:
        chunks = array.shape
    return tuple(max(1, size) for size in chunks)
