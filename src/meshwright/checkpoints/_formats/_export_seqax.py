"""Exports to seqax's format, which `readers/_seqax.py` describes.

The chunks are the shards or stored chunks of the arrays, as in seqax. TensorStore writes them with seqax's
metadata, so that the files are the same as seqax's, byte for byte.
"""

import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from meshwright.base._internal import Directory, ObjectPath, fsync_directory, location, tree
from meshwright.checkpoints._arrays._chunks import cuts
from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._arrays._source import Source
from meshwright.checkpoints._exports import (
    Chosen,
    Names,
    TreeSource,
    chosen,
    readable,
    refuse_dtypes,
    staged,
)
from meshwright.checkpoints._formats.readers._tensorstore import (
    errors_naming_action,
    store_of,
    tensorstore_for,
)
from meshwright.errors import UsageError
from meshwright.processes._internal import on_lead

# With several threads, each would keep the memory in which it compressed or wrote a chunk.
_ONE_AT_A_TIME = {"data_copy_concurrency": {"limit": 1}, "file_io_concurrency": {"limit": 1}}
# Segments that no array's path may have.
_NONE = {"", ".", "..", ".zarray", ".zattrs", ".zgroup"}
_ARRAY = ".zarray"
_BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}


def seqax_name(name: str) -> str:
    """Return `['params']['w']` for `params/w`, which is JAX's `keystr` of a leaf in nested dictionaries.

    A name of one component stays as it is: it may come from seqax, which joins keys by nothing.
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
    """Write a checkpoint that seqax's `load_zarr` reads, `directory/0000000800`, and return its path.

    Collective: process 0 reads and writes, a chunk at a time, and all processes return when it is done. The
    file that marks the checkpoint as complete is written last.

    Args:
      tree_or_source: A tree whose arrays this process holds whole, or an opened checkpoint.
      directory: The directory of checkpoints, local or in a store.
      step: The step, which is the name of the checkpoint.
      names: Returns the stored name for an array's Meshwright name, or None, which leaves the array out. By
        default a leaf of a tree gets its `keystr` in JAX, and an array of a checkpoint the `keystr` of a leaf
        in nested dictionaries. For states of seqax's own classes give `lambda name: name.replace("/", "")`.

    Raises:
      UsageError: The step exists, no array is left, two arrays would get the same name, zarr lacks the dtype
        of one, an array lies on other processes too, or TensorStore is not installed.
      DamagedError: A part of the checkpoint is damaged.

    Example:
      >>> path = mw.checkpoints.export_seqax({"params": {"w": jnp.ones((4, 2))}}, "exported", step=800)
      >>> path.name, list(mw.checkpoints.open_source("exported").arrays())
      ('0000000800', ['params/w'])
    """
    source, path = readable(tree_or_source), location(directory) / f"{step:010d}"
    is_checkpoint = source is tree_or_source
    arrays = chosen(
        source.arrays(), names or (seqax_name if is_checkpoint else _keystrs(tree_or_source).__getitem__)
    )
    refuse_dtypes("seqax", arrays)
    if unfit := [name for name in arrays if "\\" in name or not _NONE.isdisjoint(name.split("/"))]:
        raise UsageError(f"zarr has no arrays called {unfit[0]!r}. Give `names` that rename it.")

    def write() -> None:
        if isinstance(path, ObjectPath):
            _refuse_if_there(path)
            _write(path, arrays, source)
            return
        # On a disk the checkpoint appears when it is complete; in a store `write_completed` tells.
        with staged(path) as staging:
            _refuse_if_there(path)
            _write(staging / path.name, arrays, source)
            (staging / path.name).rename(path)
            fsync_directory(path.parent)

    on_lead(write)
    return path


def _refuse_if_there(path: Directory) -> None:
    if not path.is_dir():
        return
    if isinstance(path, ObjectPath) and not (path / ".zattrs").is_file():
        raise UsageError(
            f"{path} exists, but is not complete. If no process writes there any more, delete all below "
            "it; or give another destination."
        )
    raise UsageError(f"{path} exists already; give another directory, or move it away.")


def _write(path: Directory, arrays: Mapping[str, Chosen], source: Source | TreeSource) -> None:
    writer = _Writer(path)
    writer.put(".zgroup", {"zarr_format": 2})
    for name, choice in arrays.items():
        _write_array(writer, name, source, choice)
    # Written last, as seqax reads `write_completed` as the mark of a complete checkpoint.
    writer.put(".zattrs", {"write_completed": True})


class _Writer:
    """Writes by TensorStore: to a disk or, if the destination is a store, into memory and from there."""

    def __init__(self, path: Directory):
        tensorstore = tensorstore_for("seqax")
        self.context, self._place = tensorstore.Context(_ONE_AT_A_TIME), path
        if isinstance(path, ObjectPath):
            self._store = tensorstore.KvStore.open("memory://", context=self.context).result()
        else:
            self._store = store_of(path, self.context)

    def put(self, name: str, document: dict[str, Any]) -> None:
        with errors_naming_action(f"write {name} in {self._place}"):
            content = json.dumps(document, indent=4, sort_keys=True).encode()  # as zarr does
            self._store.write(name, content).result()
        # TensorStore needs `.zarray` in memory until the array is open.
        if not name.endswith(_ARRAY):
            self._upload()

    def opened(self, name: str) -> Any:
        """Open an array for writing, after its metadata was written."""
        spec = {"driver": "zarr", "store_data_equal_to_fill_value": True}
        with errors_naming_action(f"open {name} in {self._place}"):
            kvstore = self._store / f"{name}/"
            opening = tensorstore_for("seqax").open(spec, kvstore=kvstore, open=True, context=self.context)
            return opening.result()

    def put_chunk(self, name: str, chunk: Any, block: np.ndarray) -> None:
        """Write one chunk without copying it, and wait, so that it is freed before the next is read."""
        with errors_naming_action(f"write {name} in {self._place}"):
            chunk.write(block, can_reference_source_data_indefinitely=True).result()
        self._upload()

    def _upload(self) -> None:
        """Move all files in memory to the store, if the destination is one."""
        if not isinstance(self._place, ObjectPath):
            return
        for key in self._store.list().result():
            (self._place / key.decode()).put(self._store.read(key).result().value)
            self._store.write(key, None).result()


def _keystrs(leaves: tree.PyTree) -> dict[str, str]:
    """Return JAX's `keystr` of each leaf, by its Meshwright name."""
    paths = (jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(leaves)[0])
    return dict(zip(tree.leaf_names(leaves), paths, strict=True))


def _write_array(writer: _Writer, name: str, source: Source | TreeSource, choice: Chosen) -> None:
    shape, chunks = choice.array.shape, _chunks(choice.array)
    metadata = {
        "zarr_format": 2,
        "shape": shape,
        "chunks": chunks,
        "dtype": np.dtype(choice.array.dtype).str,
        "compressor": _BLOSC if shape else None,
        "fill_value": None,
        "filters": None,
        "order": "C",
    }
    writer.put(f"{name}/{_ARRAY}", metadata)
    opened = writer.opened(name)
    for index in cuts(shape, chunks):
        writer.put_chunk(name, opened[index], source.read(choice.name, index))


def _chunks(array: Any) -> tuple[int, ...]:
    """Return the shape of an array's shards on devices, or of its chunks in a checkpoint."""
    if getattr(array, "sharding", None) is not None:
        chunks = array.sharding.shard_shape(array.shape)
    elif isinstance(array, LazyArray):
        chunks = array.stored_chunks or array.chunk_shape
    else:
        chunks = array.shape
    return tuple(max(1, size) for size in chunks)
