"""One process's share of a save in an object store: as `_part.py` has it, but nothing is written to a disk.

The data file is put together an object at a time, in memory that they use in turn.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from meshwright.checkpoint._format import _zip
from meshwright.checkpoint._format._data_file import Filling
from meshwright.checkpoint._format._layout import ArrayLayout
from meshwright.checkpoint._format._part import data_file_name, part_file_name, report
from meshwright.checkpoint._format._plan import Plan, plan
from meshwright.checkpoint._format._snapshot import Buffer, Snapshot
from meshwright.crc32 import crc32
from meshwright.storage import ObjectPath, Part, parts_of, put_parts


def upload_part(
    attempt: ObjectPath,
    layouts: Sequence[ArrayLayout],
    chunks: Snapshot,
    process_index: int,
    num_processes: int,
) -> None:
    """Write this process's data file below `attempt`, and then its part file."""
    data, part = data_file_name(process_index, num_processes), part_file_name(process_index)
    try:
        planned = plan(tuple(layouts), process_index)
        objects = _Objects(planned, chunks)
        put_parts(attempt / data, planned.nbytes, objects.contents(parts_of(attempt / data, planned.nbytes)))
        (attempt / part).put(json.dumps(report(planned, objects.crcs)).encode())
    except BaseException as error:
        chunks.abandon()
        word = json.dumps({"error": f"{type(error).__name__}: {error}"}).encode()
        with contextlib.suppress(Exception):  # the store that failed may not take it
            (attempt.impatient() / part).put(word)
        raise


class _Objects:
    """A data file, put together an object at a time."""

    def __init__(self, plan: Plan, chunks: Snapshot):
        self._plan, self._chunks, self._filling = plan, chunks, Filling(plan, chunks)
        self._crcs_of_divided: dict[int, int] = {}
        self._directory: bytes | None = None
        self.crcs: list[int] = []
        """The CRC-32 of each chunk, once all is put together."""

    def contents(self, parts: Sequence[Part]) -> Iterator[bytearray]:
        """Yield what each object is to hold; it is valid until the next one."""
        room = bytearray(parts[0].nbytes)
        for part in parts:
            self._fill(memoryview(room)[: part.nbytes], part.offset)
            yield room if part.nbytes == len(room) else room[: part.nbytes]

    def _fill(self, window: memoryview, start: int) -> None:
        """Put what stands in the file from `start` on into `window`."""
        if before_directory := window[: max(0, self._plan.end - start)]:
            self._filling.fill(before_directory, start)
            self._put_headers_of_divided(window, start)
        if start + len(window) > self._plan.end:
            self._put_directory(window, start)

    def _put_headers_of_divided(self, window: memoryview, start: int) -> None:
        """Write the headers of chunks that end in a later object: their checksums cannot wait for that."""
        for number in self._filling.unfinished_headers:
            if number not in self._crcs_of_divided:
                self._crcs_of_divided[number] = _crc32_of(self._chunks.get(number))
            header = _zip.with_crc(self._plan.headers[number], self._crcs_of_divided[number])
            _put(window, start, header, self._plan.entries[number].header_offset)

    def _put_directory(self, window: memoryview, start: int) -> None:
        if self._directory is None:
            self.crcs = self._filling.crcs()
            self._directory = self._plan.directory_with(self.crcs)
        _put(window, start, self._directory, self._plan.end)


def _put(window: memoryview, start: int, content: bytes, offset: int) -> None:
    """Write what stands at `offset` in the file, as far as it lies in the window that begins at `start`."""
    first, last = max(offset, start), min(offset + len(content), start + len(window))
    if first < last:
        window[first - start : last - start] = content[first - offset : last - offset]


def _crc32_of(pieces: Iterable[Buffer]) -> int:
    crc = 0
    for piece in pieces:
        crc = crc32(np.frombuffer(piece, np.uint8), crc)
    return crc
