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

from meshwright.errors import UsageError
from meshwright.storage import local_path

_MAX_BYTES = 10 << 30
"""Size of the user's folder beyond which the entries that were not read for longest are deleted."""
_BEING_WRITTEN_SECONDS = 60
"""Age below which an entry may still be being written."""
_CHECKED = ".checked"
"""A file whose time says until when entries were checked."""
_ZLIB, _BLOCK_BYTES = b"\x78", 1 << 20


def compile_cache(directory: str | Path | None) -> None:
    """Keep every program that this process compiles in `directory`, and take what is there from there.

    None keeps none from now on.

    For the whole process, from now on; best before anything compiles. On several processes process 0
    writes, so the others gain by it where they share the directory. An entry is found again for the same
    program, options, versions of JAX and kind of devices.

    What is known to be unsafe about it (jax 0.10 and 0.12):

    - Entries are code. Whoever may write to the directory can run anything as you; one that is made here is
      open to its owner alone.
    - Programs for CPUs are for the very features of the CPU that compiled them. JAX warns in its log when
      they meet another, and may end in SIGILL (jax#38445): use a directory for each kind of machine, as
      `user_compile_cache` does.
    - Files are not written atomically nor ever written again. JAX compiles again, with a warning at every
      start, what a killed process left half written. Here it is deleted when the directory is next opened.
    - It grows without bound; `jax_compilation_cache_max_size` sets one, with a lock for every access.

    Raises:
      UsageError: the directory cannot be made, or is an address.
    """
    jax.config.update("jax_compilation_cache_dir", None if directory is None else _opened(directory))
    # Else only what takes a second to compile is kept.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # or the directory that was used first would stay


def user_compile_cache() -> Path:
    """Return the folder of this user and this kind of machine for compiled programs, limited to 10 GiB.

    It is below `$XDG_CACHE_HOME`, or `~/.cache` (XDG Base Directory Specification). If it has become larger,
    the entries that were not read for longest are deleted.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = home / "meshwright/compile_cache" / f"{platform.machine()}-{_cpu_digest()}"
    with contextlib.suppress(OSError):  # another process may be deleting the same
        _delete_oldest(directory)
    return directory


def _cpu_digest() -> str:
    """Return a digest of the features of this machine's CPU, for which XLA compiles."""
    features = platform.processor()
    with contextlib.suppress(OSError):  # only Linux has the file
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = next((line for line in lines if line.startswith(("flags", "Features"))), features)
    return hashlib.sha256(features.encode()).hexdigest()[:8]


def _opened(directory: str | Path) -> str:
    place = local_path(directory, "Give a directory of this machine.")
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _delete_unfinished(place)
    except OSError as error:
        raise UsageError(f"compile_cache: cannot keep compiled programs in {directory}: {error}.") from None
    return str(place.absolute())


def _delete_unfinished(directory: Path) -> None:
    """Delete entries that a killed process left half written; entries are looked at once.

    Entries that JAX compressed by another method than zlib are left.
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
    found = [(max(seen.st_atime, seen.st_mtime), seen.st_size, path) for path, seen in _entries(directory)]
    left = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if left <= _MAX_BYTES:
            return
        path.unlink(missing_ok=True)
        left -= size


def _entries(directory: Path) -> list[tuple[Path, os.stat_result]]:
    return [(path, path.stat()) for path in directory.glob("*-cache")]
