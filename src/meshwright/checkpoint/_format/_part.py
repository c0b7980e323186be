"""One process's share of a save: its shards on the host, its data file, and word of it to process 0.

That word is a file, `part-00001.json`, because the threads that write must not start collectives:

    {"bytes": 33820, "chunks": [[name, chunk number, offset, size, crc32], ...]}
    {"error": "..."}                 where the process failed, so that nobody waits for it
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from meshwright.checkpoint._format import _zarr, _zip
from meshwright.checkpoint._format._durable import write_whole
from meshwright.checkpoint._format._layout import ArrayLayout, chunk_number
from meshwright.checkpoint._lazy import LazyArray


class HostChunk(NamedTuple):
    """One chunk that this process writes; `data` is its raw bytes, or lazy: read when it is written."""

    name: str
    number: int
    path: str
    data: memoryview | LazyArray


def to_host(leaves: Mapping[str, Any], layouts: Sequence[ArrayLayout], process_index: int) -> list[HostChunk]:
    """Return the chunks that this process writes; after that the leaves may be donated or changed.

    On CPU these are views, and XLA copies a buffer that is viewed instead of reusing it when it is
    donated (checked by a test). On accelerators all copies are started before the first is awaited.
    Shards are taken one by one, since an array keeps the copy of the whole that is made of it.
    """
    owned = [
        (layout, number, position, leaf_chunk)
        for layout in layouts
        for number, position, leaf_chunk in _owned(leaves[layout.name], layout, process_index)
    ]
    for *_, leaf_chunk in owned:
        if isinstance(leaf_chunk, jax.Array):
            leaf_chunk.copy_to_host_async()
    return [
        HostChunk(layout.name, number, _chunk_path(layout, position), _raw(leaf_chunk))
        for layout, number, position, leaf_chunk in owned
    ]


def write_part(
    directory: Path,
    layouts: Sequence[ArrayLayout],
    chunks: Sequence[HostChunk],
    process_index: int,
    num_processes: int,
) -> None:
    """Write this process's data file into `directory`, durably, and then its part file."""
    path = directory / part_file_name(process_index)
    try:
        part = _write_data_file(directory, layouts, chunks, process_index, num_processes)
        write_whole(path, json.dumps(part).encode())
    except BaseException as error:
        with contextlib.suppress(OSError):  # a full disk holds no word of it either: the next `wait` tells
            write_whole(path, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        raise


def data_file_name(process_index: int, num_processes: int) -> str:
    """Return the name of a process's data file."""
    return f"data-{process_index:05d}-of-{num_processes:05d}.zarr.zip"


def part_file_name(process_index: int) -> str:
    """Return the name of the file in which a process reports its part."""
    return f"part-{process_index:05d}.json"


def _owned(
    leaf: Any, layout: ArrayLayout, process_index: int
) -> Iterator[tuple[int, tuple[int, ...], jax.Array | np.ndarray | LazyArray]]:
    """Yield number, position and content of the chunks of `leaf` that this process writes."""
    if process_index not in layout.writers:
        return
    held = _held(leaf, layout)
    for number, position in enumerate(layout.positions()):
        if layout.writers[number] == process_index:
            yield number, position, held[number]


def _held(leaf: Any, layout: ArrayLayout) -> Mapping[int, jax.Array | np.ndarray | LazyArray]:
    """Return the chunks of `leaf` that this process holds, by number."""
    if isinstance(leaf, LazyArray):
        return {number: leaf[index] for number, index in enumerate(layout.indices())}
    if not isinstance(leaf, jax.Array):
        return {0: np.array(leaf, layout.dtype)}  # a copy, as the caller may change his
    return {
        chunk_number(shard.index, layout.shape, layout.chunk_shape): shard.data
        for shard in leaf.addressable_shards
    }


def _chunk_path(layout: ArrayLayout, position: tuple[int, ...]) -> str:
    return _zarr.chunk_path(_zarr.node_path(layout.name), position)


def _raw(leaf_chunk: jax.Array | np.ndarray | LazyArray) -> memoryview | LazyArray:
    return leaf_chunk if isinstance(leaf_chunk, LazyArray) else _bytes(leaf_chunk)


def _bytes(leaf_chunk: Any) -> memoryview:
    # Through uint8, as NumPy gives no buffer of the dtypes of ml_dtypes.
    return np.asarray(leaf_chunk).reshape(-1).view(np.uint8).data


def _write_data_file(
    directory: Path,
    layouts: Sequence[ArrayLayout],
    chunks: Sequence[HostChunk],
    process_index: int,
    num_processes: int,
) -> dict[str, Any]:
    """Write the data file, durably, and return what this process reports of it."""
    metadata = metadata_entries(layouts, process_index)
    contents = [
        *((path, memoryview(text)) for path, text in metadata.items()),
        *((chunk.path, chunk.data) for chunk in chunks),
    ]
    entries = _zip.plan((path, data.nbytes) for path, data in contents)
    with (directory / data_file_name(process_index, num_processes)).open("xb") as file:
        places = zip(entries, contents, strict=True)
        crcs = [
            _zip.write_entry(file, entry, _bytes(data) if isinstance(data, LazyArray) else data)
            for entry, (_, data) in places
        ]
        nbytes = _zip.write_directory(file, entries, crcs)
        file.flush()
        os.fsync(file.fileno())
    written = zip(chunks, entries[len(metadata) :], crcs[len(metadata) :], strict=True)
    rows = [(chunk.name, chunk.number, entry.data_offset, entry.size, crc) for chunk, entry, crc in written]
    return {"bytes": nbytes, "chunks": rows}


def metadata_entries(layouts: Sequence[ArrayLayout], process_index: int) -> dict[str, bytes]:
    """Return the metadata entries of a process's file: the arrays it has chunks of, and the groups above.

    Arrays without a single chunk, because they have no elements, are process 0's.
    """
    mine = [layout for layout in layouts if process_index in (layout.writers or (0,))]
    here = {_zarr.node_path(layout.name): layout for layout in mine}
    groups = {path: _zarr.group_metadata() for path in _zarr.groups_above(here)}
    arrays = {
        f"{node}/{_zarr.METADATA}": _zarr.array_metadata(layout.shape, layout.dtype, layout.chunk_shape)
        for node, layout in here.items()
    }
    return groups | arrays
