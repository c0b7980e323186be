"""Writes the data file of one process, and a part file that reports it to process 0.

The report is a file, `part-00001.json`, because the writing threads must not start collectives:

    {"bytes": 33820, "chunks": [[name, chunk number, offset, size, crc32], ...]}
    {"error": "..."}                 if the process failed, so that process 0 does not wait for it

The data file is planned in full and then filled in windows. A window is 16 MiB of the file, assembled in
memory, with checksums taken while the data is in the cache. On a disk, three threads fill windows and write
them past the page cache if the file system supports it (O_DIRECT, which needs aligned memory, offset and
size). So a save takes constant memory, and other files stay cached. In an object store a window is an object,
and nothing is written to a disk.

A conversion, whose state is not in memory, runs in one process, which writes slab by slab.
"""

import contextlib
import json
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from meshwright.base._internal import (
    Directory,
    ObjectPath,
    Part,
    crc32,
    joined,
    parts_of,
    put_parts,
    write_one_of_many,
)
from meshwright.checkpoints._arrays._chunks import slabs
from meshwright.checkpoints._arrays._lazy import Index
from meshwright.checkpoints._format._container import (
    CRC,
    LOCAL_CRC,
    FilePlan,
    ZipEntry,
    local_header,
    plan_file,
    with_crc,
)
from meshwright.checkpoints._format._layout import SMALL, ArrayLayout
from meshwright.checkpoints._format._snapshot import Snapshot

# Bytes of the file that are assembled in memory and written at once.
_WINDOW = 16 << 20
# Two copy and take checksums while the third one's window is written.
_NUM_THREADS = 3
# A multiple of the alignment that disks need for direct writes.
_PAGE = 4096
_IN_CACHE = 1 << 18  # bytes copied at a time before their checksum is taken

ReadArray = Callable[[str, Index], np.ndarray]
"""Returns a part of an array, given its name and an index."""


def write_part(
    directory: Directory,
    layouts: Sequence[ArrayLayout],
    chunks: Snapshot,
    process_index: int,
    num_processes: int,
) -> None:
    """Write this process's data file into `directory`, flush it to disk, and then write its part file."""
    path = directory / data_file_name(process_index, num_processes)
    part = part_file_name(process_index)
    try:
        plan = plan_file(tuple(layouts), process_index)
        if isinstance(path, ObjectPath):
            objects = _Objects(plan, chunks)
            put_parts(path, plan.nbytes, objects.contents(parts_of(path, plan.nbytes)))
            crcs = objects.crcs
        else:
            crcs = _write_file(path, plan, chunks)
        _write_report(directory / part, _report(plan, crcs))
    except BaseException as error:
        chunks.abandon()
        # The same failure may prevent this; the next `wait` reports it.
        with contextlib.suppress(Exception):
            hasty = directory.impatient() if isinstance(directory, ObjectPath) else directory
            _write_report(hasty / part, {"error": f"{type(error).__name__}: {error}"})
        raise


def write_streamed(directory: Path, layouts: Sequence[ArrayLayout], read: ReadArray) -> None:
    """Write the data file and the part file of a single process; `read` returns any part of any array."""
    plan = plan_file(tuple(layouts), 0)
    chunks = [(layout, position) for layout in layouts for position in layout.positions()]
    with (directory / data_file_name(0, 1)).open("xb") as file:
        file.write(plan.metadata)
        crcs = [
            _write_chunk(file, entry, _chunk_slabs(layout, position, read))
            for entry, (layout, position) in zip(plan.entries, chunks, strict=True)
        ]
        file.seek(plan.end)
        file.write(plan.directory_with(crcs))
        file.flush()
        os.fsync(file.fileno())
    _write_report(directory / part_file_name(0), _report(plan, crcs))


def data_file_name(process_index: int, num_processes: int) -> str:
    """Return the name of a process's data file."""
    return f"data-{process_index:05d}-of-{num_processes:05d}.zarr.zip"


def part_file_name(process_index: int) -> str:
    """Return the name of a process's part file."""
    return f"part-{process_index:05d}.json"


def _report(plan: FilePlan, crcs: Sequence[int]) -> dict[str, Any]:
    """Return the content of the part file, given the CRC-32 of each chunk."""
    rows = [
        (name, number, entry.data_offset, entry.size, crc)
        for (name, number), entry, crc in zip(plan.chunks, plan.entries, crcs, strict=True)
    ]
    return {"bytes": plan.nbytes, "chunks": rows}


def _write_report(path: Directory, report: Mapping[str, Any]) -> None:
    content = json.dumps(report).encode()
    if isinstance(path, ObjectPath):
        path.put(content)
    else:
        # Not flushed: the part file is of use until the commit only.
        write_one_of_many(path, content)


def _write_chunk(file: BinaryIO, entry: ZipEntry, data: Iterator[memoryview]) -> int:
    """Write an entry slab by slab, then its header with the checksum, and return that."""
    crc = 0
    file.seek(entry.data_offset)
    for slab in data:
        crc = crc32(slab, crc)
        file.write(slab)
    file.seek(entry.header_offset)
    file.write(local_header(entry, crc))
    return crc


def _chunk_slabs(layout: ArrayLayout, position: tuple[int, ...], read: ReadArray) -> Iterator[memoryview]:
    origin = [cell * size for cell, size in zip(position, layout.chunk_shape, strict=True)]
    for slab in slabs(layout.chunk_shape, layout.dtype.itemsize):
        index = tuple(
            slice(start + part.start, start + part.stop) for start, part in zip(origin, slab, strict=True)
        )
        yield read(layout.name, index).reshape(-1).view(np.uint8).data


def _write_file(path: Path, plan: FilePlan, chunks: Snapshot) -> list[int]:
    """Write the data file, flush it to disk, and return the CRC-32 of each chunk. Releases copied chunks."""
    # Direct writes end at a whole page. The rest and the directory are written through the page cache.
    end = plan.end // _PAGE * _PAGE
    filling = _Filling(plan, chunks)
    with _opened(path) as files:
        # If the disk is too small, the save fails here, before anything is copied.
        os.posix_fallocate(files.buffered, 0, plan.nbytes)
        _write_windows(filling, end, files)
        rest = bytearray(plan.end - end)
        filling.fill(memoryview(rest), end)
        crcs = filling.crcs()
        _write(files.buffered, memoryview(rest + plan.directory_with(crcs)), end)
        for number in filling.unfinished_headers:
            header = with_crc(plan.headers[number], crcs[number])
            _write(files.buffered, memoryview(header), plan.entries[number].header_offset)
        os.fsync(files.buffered)
    return crcs


class _Copied(NamedTuple):
    """A part of a chunk that was copied into one window: start and size in the chunk, and its CRC-32."""

    start: int
    nbytes: int
    crc: int


class _Filling:
    """Assembles ranges of the file, each once."""

    def __init__(self, plan: FilePlan, chunks: Snapshot):
        self._plan, self._chunks = plan, chunks
        self._starts = [entry.header_offset for entry in plan.entries]
        self._crcs = [0] * len(plan.entries)
        self._parts: dict[int, list[_Copied]] = {}
        self._lock = Lock()
        self.unfinished_headers: list[int] = []
        """The numbers of chunks that end in a later window than they begin; their headers are left out."""

    def fill(self, window: memoryview, start: int) -> None:
        """Fill `window` with the bytes of the file from `start` on."""
        stop, plan = start + len(window), self._plan
        metadata = plan.metadata[start:stop]
        window[: len(metadata)] = metadata
        for number in range(max(0, bisect_right(self._starts, start) - 1), len(plan.entries)):
            entry = plan.entries[number]
            if entry.header_offset >= stop:
                break
            if start <= entry.header_offset and entry.data_offset + entry.size <= stop:
                self._fill_whole(window[entry.header_offset - start :], number)
            else:
                self._fill_part(window, start, number)

    def abandon(self) -> None:
        """Give up the save: end all waits for chunks."""
        self._chunks.abandon()

    def crcs(self) -> list[int]:
        """Return the CRC-32 of each chunk, after the whole file has been filled."""
        for number, parts in self._parts.items():
            for part in sorted(parts):
                self._crcs[number] = joined(self._crcs[number], part.crc, part.nbytes)
        return self._crcs

    def _fill_whole(self, window: memoryview, number: int) -> None:
        header, entry = self._plan.headers[number], self._plan.entries[number]
        data = window[len(header) : len(header) + entry.size]
        self._crcs[number] = crc = _copy(self._chunks.get(number), data, 0)
        self._chunks.release(number)
        window[: len(header)] = header
        CRC.pack_into(window, LOCAL_CRC, crc)

    def _fill_part(self, window: memoryview, start: int, number: int) -> None:
        entry = self._plan.entries[number]
        if start <= entry.header_offset:
            self.unfinished_headers.append(number)
        first = max(entry.data_offset, start)
        last = min(entry.data_offset + entry.size, start + len(window))
        if first >= last:
            return
        skip = first - entry.data_offset
        crc = _copy(self._chunks.get(number), window[first - start : last - start], skip)
        with self._lock:
            parts = self._parts.setdefault(number, [])
            parts.append(_Copied(skip, last - first, crc))
            copied = sum(part.nbytes for part in parts)
        # All windows of the chunk are filled, so its copy can be freed.
        if copied == entry.size:
            self._chunks.release(number)


def _copy(pieces: list, window: memoryview, skip: int) -> int:
    """Copy a chunk from byte `skip` on into `window`, as far as it fits; return the CRC-32 of the copy."""
    if len(window) < SMALL and not skip:
        joint = b"".join(pieces)
        if len(joint) == len(window):
            window[:] = joint
            return crc32(joint)
    target, crc, filled = np.frombuffer(window, np.uint8), 0, 0
    for piece in pieces:
        data = np.frombuffer(piece, np.uint8)[skip:]
        skip = max(0, skip - memoryview(piece).nbytes)
        for begin in range(0, min(len(data), len(target) - filled), _IN_CACHE):
            block = target[filled : filled + min(_IN_CACHE, len(data) - begin)]
            block[:] = data[begin : begin + len(block)]
            crc, filled = crc32(block, crc), filled + len(block)
    return crc


class _Files(NamedTuple):
    """File descriptors of the data file; both are the same if direct writes are not supported."""

    buffered: int
    direct: int


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Files]:
    with contextlib.ExitStack() as opened:
        buffered = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        opened.callback(os.close, buffered)
        direct = buffered
        # tmpfs and some network file systems refuse.
        with contextlib.suppress(OSError):
            direct = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
            opened.callback(os.close, direct)
        yield _Files(buffered, direct)


def _write_windows(filling: _Filling, end: int, files: _Files) -> None:
    """Write the file up to `end`, a multiple of the page size, on threads that take windows in turn."""
    starts, lock = iter(range(0, end, _WINDOW)), Lock()
    failures: list[BaseException] = []

    def next_start() -> int | None:
        with lock:
            return None if failures else next(starts, None)

    def work() -> None:
        try:
            room = _aligned(_WINDOW)
            while (start := next_start()) is not None:
                window = room[: end - start]
                filling.fill(window, start)
                _write_direct(files, window, start)
        except BaseException as error:
            failures.append(error)
            filling.abandon()

    with ThreadPoolExecutor(_NUM_THREADS, "checkpoint-writer") as threads:
        for _ in range(min(_NUM_THREADS, -(-end // _WINDOW))):
            threads.submit(work)
    if failures:
        # Later ones may only say that the save was given up.
        raise failures[0]


def _aligned(nbytes: int) -> memoryview:
    """Return page-aligned memory. NumPy's allocations use huge pages, from which writes take less time."""
    room = np.empty(nbytes + _PAGE, np.uint8)
    first = -room.ctypes.data % _PAGE
    return room[first : first + nbytes].data


def _write_direct(files: _Files, data: memoryview, offset: int) -> None:
    """Write past the page cache, and through it the bytes that the file system did not take that way."""
    count = 0
    # If an error is not about alignment, the ordinary write raises it again.
    with contextlib.suppress(OSError):
        count = os.pwrite(files.direct, data, offset)
    _write(files.buffered, data[count:], offset + count)


def _write(file: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(file, data, offset)
        data, offset = data[count:], offset + count


class _Objects:
    """Assembles a data file object by object."""

    def __init__(self, plan: FilePlan, chunks: Snapshot):
        self._plan, self._chunks, self._filling = plan, chunks, _Filling(plan, chunks)
        self._crcs_of_divided: dict[int, int] = {}
        self._directory: bytes | None = None
        self.crcs: list[int] = []
        """The CRC-32 of each chunk, after the whole file was assembled."""

    def contents(self, parts: Sequence[Part]) -> Iterator[bytearray]:
        """Yield the content of each object, which is valid until the next one."""
        room = bytearray(parts[0].nbytes)
        for part in parts:
            self._fill(memoryview(room)[: part.nbytes], part.offset)
            yield room if part.nbytes == len(room) else room[: part.nbytes]

    def _fill(self, window: memoryview, start: int) -> None:
        """Fill `window` with the bytes of the file from `start` on."""
        if before_directory := window[: max(0, self._plan.end - start)]:
            self._filling.fill(before_directory, start)
            self._put_headers_of_divided(window, start)
        if start + len(window) > self._plan.end:
            self._put_directory(window, start)

    def _put_headers_of_divided(self, window: memoryview, start: int) -> None:
        """Write the headers of chunks that end in a later object, whose checksums are needed now."""
        for number in self._filling.unfinished_headers:
            if number not in self._crcs_of_divided:
                self._crcs_of_divided[number] = crc32_of_pieces(self._chunks.get(number))
            header = with_crc(self._plan.headers[number], self._crcs_of_divided[number])
            _put(window, start, header, self._plan.entries[number].header_offset)

    def _put_directory(self, window: memoryview, start: int) -> None:
        if self._directory is None:
            self.crcs = self._filling.crcs()
            self._directory = self._plan.directory_with(self.crcs)
        _put(window, start, self._directory, self._plan.end)


def _put(window: memoryview, start: int, content: bytes, offset: int) -> None:
    """Copy `content`, at `offset` in the file, into the window that begins at `start`, where they overlap."""
    first, last = max(offset, start), min(offset + len(content), start + len(window))
    if first < last:
        window[first - start : last - start] = content[first - offset : last - offset]


def crc32_of_pieces(pieces: Iterable[Any]) -> int:
    """Return the CRC-32 of a chunk, given its consecutive pieces."""
    crc = 0
    for piece in pieces:
        crc = crc32(np.frombuffer(piece, np.uint8), crc)
    return crc
