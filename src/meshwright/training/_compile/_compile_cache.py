"""Compiled programs kept on disk, so that a process which needs the same one need not compile it again."""

import contextlib
import hashlib
import os
import platform
import time
import zlib
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from meshwright.base._internal import local_path, user_cache
from meshwright.errors import UsageError

_MAX_BYTES = 10 << 30
"""The largest size of the user's folder. Beyond it the least recently read entries are deleted."""
_BEING_WRITTEN_SECONDS = 60
"""Age below which an entry may still be being written."""
_CHECKED = ".checked"
"""A file whose modification time is the time up to which entries were checked."""
_ZLIB, _BLOCK_BYTES = b"\x78", 1 << 20


def compile_cache(directory: str | Path | None) -> None:
    """Store compiled programs in `directory`, and load them from there instead of compiling again.

    It holds for the whole process from now on, so call it before anything compiles. With several processes
    process 0 writes, and the others gain if they share the directory. On CPUs they cannot read what process 0
    wrote, so each keeps the program of its own step. An entry is used again for the same program, options,
    version of JAX and kind of device.

    Known risks (jax 0.10 and 0.12):

    - Entries are code. Anyone who can write to the directory can run code as you. A directory that is made
      here is open to its owner only.
    - A program for a CPU uses the features of the CPU that compiled it. On another CPU, JAX warns in its log
      and may die of SIGILL (jax#38445). Use one directory for each kind of machine, as `user_compile_cache`
      does.
    - JAX does not write files atomically and never writes a file again. A file that a killed process left
      half written costs a warning and a compilation at every start. This function deletes such files.
    - The directory grows without bound. `jax_compilation_cache_max_size` sets a bound, but takes a lock for
      every access.
    """
    jax.config.update("jax_compilation_cache_dir", None if directory is None else _opened(directory))
    # By default JAX stores only programs that take a second to compile.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # or the directory that was used first would stay


def user_compile_cache() -> Path:
    """Return the folder of this user and this kind of machine for compiled programs, limited to 10 GiB.

    It is below `$XDG_CACHE_HOME`, or `~/.cache` (XDG Base Directory Specification); where that cannot be
    written, in the temporary directory. If it has become larger, the entries that were not read for longest
    are deleted.
    """
    directory = user_cache() / "compile_cache" / f"{platform.machine()}-{_cpu_digest()}"
    with contextlib.suppress(OSError):  # another process may be deleting the same
        _delete_oldest(directory)
    return directory


def _cpu_digest() -> str:
    """Return a digest of the features of this machine's CPU, for which XLA compiles."""
    features = platform.processor()
    with contextlib.suppress(OSError):  # only Linux has the file
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        features = next((line for line in lines if line.startswith(("flags", "Features"))), features)
    return hashlib.sha256(features.encode()).hexdigest()[:8]


def _opened(directory: str | Path) -> str:
    path = local_path(directory, "Give a local directory.")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _delete_unfinished(path)
    except OSError as error:
        raise UsageError(f"compile_cache: cannot keep compiled programs in {directory}: {error}.") from None
    return str(path.absolute())


def _delete_unfinished(directory: Path) -> None:
    """Delete entries that a killed process left half written. Each entry is checked only once.

    Entries that are not compressed by zlib are left alone.
    """
    marker, until = directory / _CHECKED, time.time() - _BEING_WRITTEN_SECONDS
    since = marker.stat().st_mtime if marker.exists() else 0.0
    for entry in directory.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            if since <= entry.stat().st_mtime < until and not _is_whole(entry):
                entry.unlink()
    marker.touch()
    os.utime(marker, (until, until))


def _is_whole(entry: Path) -> bool:
    with entry.open("rb") as file:
        stream, block = zlib.decompressobj(), file.read(_BLOCK_BYTES)
        if block and not block.startswith(_ZLIB):
            return True
        try:
            while block:
                stream.decompress(block)
                block = file.read(_BLOCK_BYTES)
        except zlib.error:
            return False
        return stream.eof


def _delete_oldest(directory: Path) -> None:
    """Delete the entries that were not read for longest, until the others take no more than the limit."""
    entries = [(max(stat.st_atime, stat.st_mtime), stat.st_size, path) for path, stat in _entries(directory)]
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= _MAX_BYTES:
            return
        path.unlink(missing_ok=True)
        total -= size


def _entries(directory: Path) -> list[tuple[Path, os.stat_result]]:
    return [(path, path.stat()) for path in directory.rglob("*-cache")]
