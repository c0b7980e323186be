"""Writing one data file: planned in full, then filled through a few windows by three threads.

A window is 16 MiB of the file, put together in memory, where the checksums are taken while it is in
the cache, and written past the page cache where the file system has that (O_DIRECT, which wants
memory, offset and size aligned). So a save takes constant memory and leaves other files cached.
"""

import contextlib
import os
from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np

from meshwright.checkpoint._format import _zip
from meshwright.checkpoint._format._layout import SMALL
from meshwright.checkpoint._format._plan import Plan
from meshwright.checkpoint._format._snapshot import Snapshot
from meshwright.crc32 import crc32, joined

_WINDOW = 16 << 20
_NUM_THREADS = 3  # two that copy and checksum, while the third one's window is written
_PAGE = 4096  # a multiple of what disks want direct writes aligned to
_IN_CACHE = 1 << 18  # bytes that are copied and then checksummed


def write_data_file(path: Path, plan: Plan, chunks: Snapshot) -> list[int]:
    """Write the file `path`, durably, and return the CRC-32 of each chunk, which is released when copied."""
    end = plan.end // _PAGE * _PAGE
    filling = Filling(plan, chunks)
    with _opened(path) as files:
        os.posix_fallocate(files.buffered, 0, plan.nbytes)  # a disk too small is found out here
        _write_windows(filling, end, files)
        rest = bytearray(plan.end - end)
        filling.fill(memoryview(rest), end)
        crcs = filling.crcs()
        _write(files.buffered, memoryview(rest + plan.directory_with(crcs)), end)
        for number in filling.unfinished_headers:
            header = _zip.with_crc(plan.headers[number], crcs[number])
            _write(files.buffered, memoryview(header), plan.entries[number].header_offset)
        os.fsync(files.buffered)
    return crcs


class _Part(NamedTuple):
    """What one window holds of a chunk."""

    start: int
    nbytes: int
    crc: int


class Filling:
    """Puts stretches of the file together, each once."""

    def __init__(self, plan: Plan, chunks: Snapshot):
        self._plan, self._chunks = plan, chunks
        self._starts = [entry.header_offset for entry in plan.entries]
        self._crcs = [0] * len(plan.entries)
        self._parts: dict[int, list[_Part]] = {}
        self._lock = Lock()
        self.unfinished_headers: list[int] = []
        """The chunks that do not end in the window that they begin in: their headers are left out."""

    def fill(self, window: memoryview, start: int) -> None:
        """Put what stands in the file from `start` on into `window`."""
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
        """Let nobody wait for what will not be filled."""
        self._chunks.abandon()

    def crcs(self) -> list[int]:
        """Return the CRC-32 of each chunk, once all has been filled."""
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
        _zip.CRC.pack_into(window, _zip.LOCAL_CRC, crc)

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
            parts.append(_Part(skip, last - first, crc))
            copied = sum(part.nbytes for part in parts)
        if copied == entry.size:
            self._chunks.release(number)


def _copy(pieces: list, window: memoryview, skip: int) -> int:
    """Copy a chunk but for its first `skip` bytes into `window`, as far as that goes; return the CRC-32."""
    if len(window) < SMALL and not skip:
        joint = b"".join(pieces)
        if len(joint) == len(window):
            window[:] = joint
            return crc32(joint)
    into, crc, at = np.frombuffer(window, np.uint8), 0, 0
    for piece in pieces:
        data = np.frombuffer(piece, np.uint8)[skip:]
        skip = max(0, skip - memoryview(piece).nbytes)
        for begin in range(0, min(len(data), len(into) - at), _IN_CACHE):
            block = into[at : at + min(_IN_CACHE, len(data) - begin)]
            block[:] = data[begin : begin + len(block)]
            crc, at = crc32(block, crc), at + len(block)
    return crc


class _Files(NamedTuple):
    """One file, opened twice: the same where direct writes are not to be had."""

    buffered: int
    direct: int


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Files]:
    with contextlib.ExitStack() as opened:
        buffered = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        opened.callback(os.close, buffered)
        direct = buffered
        with contextlib.suppress(OSError):  # tmpfs and some network file systems refuse
            direct = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
            opened.callback(os.close, direct)
        yield _Files(buffered, direct)


def _write_windows(filling: Filling, end: int, files: _Files) -> None:
    """Write the file up to `end`, a multiple of a page, by several threads that take windows in turn."""
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
        raise failures[0]  # the others' may be no more than that the save was given up


def _aligned(nbytes: int) -> memoryview:
    """Return memory that begins on a page. Large ones, which NumPy asks for, take less time to write from."""
    room = np.empty(nbytes + _PAGE, np.uint8)
    first = -room.ctypes.data % _PAGE
    return room[first : first + nbytes].data


def _write_direct(files: _Files, data: memoryview, offset: int) -> None:
    """Write past the page cache; what the file system takes only in part, or not at all, through it."""
    written = 0
    with contextlib.suppress(
        OSError
    ):  # if it is not about alignment, the ordinary write fails too, and says so
        written = os.pwrite(files.direct, data, offset)
    _write(files.buffered, data[written:], offset + written)


def _write(file: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
