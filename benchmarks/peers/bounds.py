"""What the disk and the memory of this machine allow: the same bytes moved by plain system calls.

And what a process takes meanwhile: the memory beyond what it had, and the bytes that it reads.
"""

import gc
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

BLOCK = 16 << 20


def in_threads(move: Callable[[int], None], nbytes: int) -> float:
    """Return the seconds that two threads take to move all blocks."""
    started = time.perf_counter()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(move, range(0, nbytes, BLOCK)))
    return time.perf_counter() - started


def write_bound(path: Path, nbytes: int, source: np.ndarray, flags: int) -> float:
    nbytes = -(-nbytes // 4096) * 4096
    file = os.open(path, os.O_WRONLY | os.O_CREAT | flags)
    os.posix_fallocate(file, 0, nbytes)
    seconds = in_threads(lambda at: os.pwrite(file, source[: min(BLOCK, nbytes - at)], at), nbytes)
    started = time.perf_counter()
    os.fsync(file)
    os.close(file)
    return seconds + time.perf_counter() - started


def read_bound(path: Path, into: np.ndarray) -> float:
    file = os.open(path, os.O_RDONLY)
    seconds = in_threads(lambda at: os.preadv(file, [into[at : at + BLOCK]], at), len(into))
    os.close(file)
    return seconds


def bounds(directory: Path, nbytes: int, source: np.ndarray) -> dict[str, float]:
    path, found = directory / "raw", []
    for flags in (0, os.O_DIRECT):
        path.unlink(missing_ok=True)
        found.append(write_bound(path, nbytes, source, flags))
    into = np.ones(nbytes, np.uint8)
    read_bound(path, into)  # and from now on it is in the page cache
    copied, started = np.ones(nbytes, np.uint8), time.perf_counter()
    np.copyto(copied, into)
    memcpy = time.perf_counter() - started
    del copied
    settle(nbytes)
    read = read_bound(path, np.empty(nbytes, np.uint8))
    used = read_bound(path, into)
    return {"write": min(found), "read": read, "read into used memory": used, "memcpy": memcpy}


class Peak:
    """The resident memory of this process beyond what it had, at its highest, in bytes."""

    def __enter__(self) -> "Peak":
        Path("/proc/self/clear_refs").write_text("5")  # forgets the highest so far
        self.before = self._status("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.nbytes = self._status("VmHWM") - self.before

    def _status(self, field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


def bytes_read() -> int:
    """Return how much this process has read, by whatever system call, from disk or the page cache."""
    return int(Path("/proc/self/io").read_text().split()[1])


def settle(nbytes: int) -> None:
    """Let go of what is left from before, and touch as much memory as what follows will need.

    JAX lets go of host memory when the collector runs. And a virtual machine gets memory that it has not
    used for a while from its host when it is touched, at under 1 GB/s: it would be most of what is measured.
    """
    gc.collect()
    np.ones(nbytes, np.uint8)


def aligned(nbytes: int) -> np.ndarray:
    room = np.random.default_rng(0).integers(0, 256, nbytes + 4096, np.uint8)
    return room[-room.ctypes.data % 4096 :][:nbytes]
