"""Writing a data file slab by slab, for a state that is in no memory: one process writes all of it."""

import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from meshwright.checkpoint._format import _zarr, _zip
from meshwright.checkpoint._format._durable import write_whole
from meshwright.checkpoint._format._layout import ArrayLayout, Index
from meshwright.checkpoint._format._part import data_file_name, metadata_entries, part_file_name
from meshwright.checkpoint._format._slabs import slabs

Read = Callable[[str, Index], np.ndarray]


def write_streamed(directory: Path, layouts: Sequence[ArrayLayout], read: Read) -> None:
    """Write data file and part file of process 0 of 1; `read` gives any part of any array."""
    metadata = metadata_entries(layouts, 0)
    chunks = [
        (layout, number, position) for layout in layouts for number, position in enumerate(layout.positions())
    ]
    sizes = [(path, len(data)) for path, data in metadata.items()]
    sizes += [(_chunk_path(layout, position), layout.chunk_nbytes) for layout, _, position in chunks]
    entries = _zip.plan(sizes)
    with (directory / data_file_name(0, 1)).open("xb") as file:
        crcs = [
            _zip.write_entry(file, entry, data)
            for entry, data in zip(entries, metadata.values(), strict=False)
        ]
        for entry, (layout, _, position) in zip(entries[len(metadata) :], chunks, strict=True):
            crcs.append(_write_chunk(file, entry, _chunk_slabs(layout, position, read)))
        nbytes = _zip.write_directory(file, entries, crcs)
        file.flush()
        os.fsync(file.fileno())
    written = zip(chunks, entries[len(metadata) :], crcs[len(metadata) :], strict=True)
    rows = [(layout.name, n, entry.data_offset, entry.size, crc) for (layout, n, _), entry, crc in written]
    write_whole(directory / part_file_name(0), json.dumps({"bytes": nbytes, "chunks": rows}).encode())


def _write_chunk(file: BinaryIO, entry: _zip.Entry, data: Iterator[memoryview]) -> int:
    """Write an entry of which the checksum is known after the last slab only, and return that."""
    crc = 0
    file.seek(entry.data_offset)
    for slab in data:
        crc = zlib.crc32(slab, crc)
        file.write(slab)
    file.seek(entry.header_offset)
    file.write(_zip.local_header(entry, crc))
    return crc


def _chunk_slabs(layout: ArrayLayout, position: tuple[int, ...], read: Read) -> Iterator[memoryview]:
    origin = [place * size for place, size in zip(position, layout.chunk_shape, strict=True)]
    for slab in slabs(layout.chunk_shape, layout.dtype.itemsize):
        index = tuple(slice(at + part.start, at + part.stop) for at, part in zip(origin, slab, strict=True))
        yield read(layout.name, index).reshape(-1).view(np.uint8).data


def _chunk_path(layout: ArrayLayout, position: tuple[int, ...]) -> str:
    return _zarr.chunk_path(_zarr.node_path(layout.name), position)
