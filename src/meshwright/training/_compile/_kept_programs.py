"""The step's program on disk, also that of processes whose programs JAX's own cache does not keep.

JAX's cache keeps the programs of process 0. On GPUs and TPUs the other processes read them. On CPUs they
cannot, since the key of an entry depends on the devices of the process itself (jax 0.10). So each of
them keeps its own step here, in a folder beside JAX's entries.
"""

import contextlib
import hashlib
import logging
import os
import pickle
import tempfile
import threading
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable

from meshwright.training._compile._compiler_options import CompilerOptions, compiled_with

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
    _keep(compiled, entry)
    return compiled, False


def _entry(options: CompilerOptions, text: str, devices: Sequence[jax.Device]) -> Path | None:
    """Return the file for a program of this process; None where JAX's cache keeps it, or nothing does."""
    directory = jax.config.jax_compilation_cache_dir  # type: ignore[missing-attribute]
    is_ours = jax.process_index() > 0 and devices[0].platform == "cpu"
    if not (directory and is_ours) or "callback" in text:  # a callback is a function of this very process
        return None
    devices_key = jax.process_index(), [device.id for device in devices], os.environ.get("XLA_FLAGS")
    versions = jax.__version__, metadata.version("jaxlib")
    key = repr((versions, devices_key, sorted(options.items()), text))
    return Path(directory, OTHERS, f"step-{hashlib.sha256(key.encode()).hexdigest()}-cache")


def _keep(compiled: jax.stages.Compiled, entry: Path) -> None:
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
