"""One process's share of a save: its data file, and word of it to process 0.

That word is a file, `part-00001.json`, because the threads that write must not start collectives:

    {"bytes": 33820, "chunks": [[name, chunk number, offset, size, crc32], ...]}
    {"error": "..."}                 where the process failed, so that nobody waits for it
"""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshwright.checkpoint._format._data_file import write_data_file
from meshwright.checkpoint._format._layout import ArrayLayout
from meshwright.checkpoint._format._plan import Plan, plan
from meshwright.checkpoint._format._snapshot import Snapshot
from meshwright.durable import write_whole


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
