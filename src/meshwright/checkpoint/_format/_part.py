"""One process's share of a save: its data file, and word of it to process 0.

That word is a file, `part-00001.json`, because the threads that write must not start collectives:

    {"bytes": 33820, "chunks": [[name, chunk number, offset, size, crc32], ...]}
    {"error": "..."}                 where the process failed, so that nobody waits for it

A state that is in no memory, as of a conversion, is one process's, which writes it slab by slab.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from meshwright.arrays import Index, slabs
from meshwright.checkpoint._format import _zip
from meshwright.checkpoint._format._data_file import write_data_file
from meshwright.checkpoint._format._layout import ArrayLayout
from meshwright.checkpoint._format._plan import Plan, plan
from meshwright.checkpoint._format._snapshot import Snapshot
from meshwright.crc32 import crc32
from meshwright.durable import write_whole

Read = Callable[[str, Index], np.ndarray]


def write_part(
    directory: Path,
    layouts: Sequence[ArrayLayout],
    chunks: Snapshot,
    process_index: int,
    num_processes: int,
) -> None:
    """Write this process's data file into `directory`, durably, and then its part file."""
    path = directory / part_file_name(process_index)
    try:
        part = _write_data_file(directory, layouts, chunks, process_index, num_processes)
        write_whole(path, json.dumps(part).encode())
    except BaseException as error:
        chunks.abandon()
        with contextlib.suppress(OSError):  # a full disk holds no word of it either: the next `wait` tells
            write_whole(path, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        raise


def data_file_name(process_index: int, num_processes: int) -> str:
    """Return the name of a process's data file."""
    return f"data-{process_index:05d}-of-{num_processes:05d}.zarr.zip"


def part_file_name(process_index: int) -> str:
    """Return the name of the file in which a process reports its part."""
    return f"part-{process_index:05d}.json"


def _write_data_file(
    directory: Path,
    layouts: Sequence[ArrayLayout],
    chunks: Snapshot,
    process_index: int,
    num_processes: int,
) -> dict[str, Any]:
    """Write the data file, durably, and return what this process reports of it."""
    planned = plan(tuple(layouts), process_index)
    crcs = write_data_file(directory / data_file_name(process_index, num_processes), planned, chunks)
    return report(planned, crcs)


def report(planned: Plan, crcs: Sequence[int]) -> dict[str, Any]:
    """Return what the part file says of a data file, given the CRC-32 of each chunk."""
    rows = [
        (name, number, entry.data_offset, entry.size, crc)
        for (name, number), entry, crc in zip(planned.chunks, planned.entries, crcs, strict=True)
    ]
    return {"bytes": planned.nbytes, "chunks": rows}


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
