"""Writing a data file slab by slab, for a state that is in no memory: one process writes all of it."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from meshwright.arrays import Index, slabs
from meshwright.checkpoint._format import _zip
from meshwright.checkpoint._format._layout import ArrayLayout
from meshwright.checkpoint._format._part import data_file_name, part_file_name, report
from meshwright.checkpoint._format._plan import plan
from meshwright.crc32 import crc32
from meshwright.durable import write_whole

Read = Callable[[str, Index], np.ndarray]


def write_streamed(directory: Path, layouts: Sequence[ArrayLayout], read: Read) -> None:
    """Write data file and part file of process 0 of 1; `read` gives any part of any array."""
    planned = plan(tuple(layouts), 0)
    chunks = [(layout, position) for layout in layouts for position in layout.positions()]
    with (directory / data_file_name(0, 1)).open("xb") as file:
        file.write(planned.metadata)
        crcs = [
            _write_chunk(file, entry, _chunk_slabs(layout, position, read))
            for entry, (layout, position) in zip(planned.entries, chunks, strict=True)
        ]
        file.seek(planned.end)
        file.write(planned.directory_with(crcs))
        file.flush()
        os.fsync(file.fileno())
    write_whole(directory / part_file_name(0), json.dumps(report(planned, crcs)).encode())


def _write_chunk(file: BinaryIO, entry: _zip.Entry, data: Iterator[memoryview]) -> int:
    """Write an entry of which the checksum is known after the last slab only, and return that."""
    crc = 0
    file.seek(entry.data_offset)
    for slab in data:
        crc = crc32(slab, crc)
        file.write(slab)
    file.seek(entry.header_offset)
    file.write(_zip.local_header(entry, crc))
    return crc


def _chunk_slabs(layout: ArrayLayout, position: tuple[int, ...], read: Read) -> Iterator[memoryview]:
    origin = [place * size for place, size in zip(position, layout.chunk_shape, strict=True)]
    for slab in slabs(layout.chunk_shape, layout.dtype.itemsize):
        index = tuple(slice(at + part.start, at + part.stop) for at, part in zip(origin, slab, strict=True))
        yield read(layout.name, index).reshape(-1).view(np.uint8).data
