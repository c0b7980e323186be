"""Options of the compiler, and compiled programs on disk, which processes load instead of compiling again.

JAX's cache keeps the programs of process 0. On GPUs and TPUs the other processes read them. On CPUs they
cannot, since the key of an entry depends on the devices of the process itself (jax 0.10). So each of
them keeps its own step, in a folder beside JAX's entries.
"""

import contextlib
import hashlib
import logging
import os
import pickle
import platform
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh, NamedSharding, PartitionSpec

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
    # Without this, the directory that was used first would stay.
    compilation_cache.reset_cache()


def user_compile_cache() -> Path:
    """Return the folder of this user and this kind of machine for compiled programs, limited to 10 GiB.

    It is below `$XDG_CACHE_HOME`, or `~/.cache` (XDG Base Directory Specification); where that cannot be
    written, in the temporary directory. If it has become larger, the entries that were not read for longest
    are deleted.
    """
    directory = user_cache() / "compile_cache" / f"{platform.machine()}-{_cpu_digest()}"
    # Another process may be deleting the same entries.
    with contextlib.suppress(OSError):
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
    stats = [(path, path.stat()) for path in directory.rglob("*-cache")]
    entries = [(max(stat.st_atime, stat.st_mtime), stat.st_size, path) for path, stat in stats]
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= _MAX_BYTES:
            return
        path.unlink(missing_ok=True)
        total -= size


CompilerOptions = Mapping[str, bool | int | float | str]
"""XLA options by name, without dashes: `{"xla_gpu_enable_triton_gemm": False}`."""

_REFUSED = ("No such compile option", "While setting option")


def compiled_with(lowered: jax.stages.Lowered, options: CompilerOptions) -> jax.stages.Compiled:
    """Compile a lowered program with `options`."""
    with _refusals("compiler options: {}"):
        return lowered.compile(compiler_options=dict(options) or None)  # type: ignore[arg-type]


def check_compiler_options(options: CompilerOptions, devices: Sequence[jax.Device]) -> None:
    """Compile a program of one addition, which shows in milliseconds whether the options are known."""
    if not options:
        return
    own_devices = (device for device in devices if device.process_index == jax.process_index())
    device = next(own_devices, devices[0])
    sharding = NamedSharding(Mesh(np.array([device]), ("device",)), PartitionSpec())
    program = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((1,), np.float32, sharding=sharding))
    with _refusals(f"{{}}, of the compiler for {device.device_kind}"):
        program.compile(compiler_options=dict(options))  # type: ignore[arg-type]


@contextlib.contextmanager
def _refusals(sentence: str) -> Iterator[None]:
    """Turn the compiler's error about an option that it refuses into a `UsageError` with this sentence."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        why = str(error).partition("\n")[0].removeprefix("INVALID_ARGUMENT: ").rstrip(".")
        if not why.startswith(_REFUSED):
            raise
        raise UsageError(
            f"{sentence.format(why)}.\n  The compiler is that of jax {jax.__version__}. Each version and "
            "each kind of device has its own options. Set options for one kind of device with a mesh rule: "
            'mesh_rules=(("NVIDIA H100.*", mw.parallel.override({"compile.options": {"xla_gpu_…": True}})),).'
        ) from None


log = logging.getLogger("meshwright")
OTHERS = "other-processes"
"""The folder for the programs of processes other than process 0, below that of the cache."""
_UNREADABLE = (OSError, EOFError, ValueError, TypeError, pickle.PickleError, jax.errors.JaxRuntimeError)
_hits = threading.local()


def _count(event: str, **_: Any) -> None:
    if event == "/jax/compilation_cache/cache_hits":
        _hits.number = getattr(_hits, "number", 0) + 1


jax.monitoring.register_event_listener(_count)


def compiled_or_kept(
    lowered: jax.stages.Lowered, options: CompilerOptions, text: str, devices: Sequence[jax.Device]
) -> tuple[jax.stages.Compiled, bool]:
    """Return the compiled program, and whether it was read from the compile cache."""
    entry = _entry(options, text, devices)
    if entry is None:
        hits_before = getattr(_hits, "number", 0)
        compiled = compiled_with(lowered, options)
        return compiled, getattr(_hits, "number", 0) > hits_before
    with contextlib.suppress(FileNotFoundError):
        try:
            program = serialize_executable.deserialize_and_load(
                entry.read_bytes(), lowered.in_tree, lowered.out_tree
            )
            return program, True
        except FileNotFoundError:
            raise
        except _UNREADABLE as error:
            log.warning("the program in %s cannot be read, and is compiled again: %s", entry, error)
    compiled = compiled_with(lowered, options)
    _store(compiled, entry)
    return compiled, False


def _entry(options: CompilerOptions, text: str, devices: Sequence[jax.Device]) -> Path | None:
    """Return the file for a program of this process; None where JAX's cache keeps it, or nothing does."""
    directory = jax.config.jax_compilation_cache_dir  # type: ignore[missing-attribute]
    is_ours = jax.process_index() > 0 and devices[0].platform == "cpu"
    # A callback is a function of this very process.
    if not (directory and is_ours) or "callback" in text:
        return None
    devices_key = jax.process_index(), [device.id for device in devices], os.environ.get("XLA_FLAGS")
    versions = jax.__version__, metadata.version("jaxlib")
    key = repr((versions, devices_key, sorted(options.items()), text))
    return Path(directory, OTHERS, f"step-{hashlib.sha256(key.encode()).hexdigest()}-cache")


def _store(compiled: jax.stages.Compiled, entry: Path) -> None:
    """Write a program, whole or not at all."""
    try:
        content = serialize_executable.serialize(compiled)[0]
        entry.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=entry.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).replace(entry)
    except (*_UNREADABLE, NotImplementedError) as error:
        log.warning("the program of the step cannot be kept in %s: %s", entry.parent, error)
