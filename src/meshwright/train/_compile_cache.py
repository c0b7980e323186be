"""Compiled programs kept on disk, so that a run which is started again need not compile again."""

from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from meshwright.errors import UsageError
from meshwright.storage import local_path


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
      they meet another, and may end in SIGILL (jax#38445): a directory for each kind of machine.
    - Files are not written atomically nor ever written again. What a killed process left half written is
      noticed, compiled again with a warning at every start, and stays until it is deleted.
    - It grows without bound; `jax_compilation_cache_max_size` sets one, with a lock for every access.

    Raises:
      UsageError: the directory cannot be made, or is an address.
    """
    jax.config.update("jax_compilation_cache_dir", None if directory is None else _made(directory))
    # Else only what takes a second to compile is kept.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # or the directory that was used first would stay


def _made(directory: str | Path) -> str:
    place = local_path(directory, "Give a directory of this machine.")
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"compile_cache: cannot keep compiled programs in {directory}: {error}.") from None
    return str(place.absolute())
