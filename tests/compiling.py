"""Compiling little: many tests train the same small model, and compiling is most of their time.

`conftest.py` has JAX keep what a session compiles in a folder, where programs that tests start find it too.
"""

import shutil
import zlib
from contextlib import contextmanager

import jax
from jax.experimental.compilation_cache import compilation_cache

MOST_COMPILED = 2**30
"""Bytes of compiled programs; if there are more, the next session begins without any."""


def tidy(folder):
    """Remove from a folder what a killed process wrote in part, which JAX would warn of for ever, or all."""
    entries = [each for each in folder.rglob("*") if each.is_file()]
    if sum(each.stat().st_size for each in entries) > MOST_COMPILED:
        shutil.rmtree(folder)
        return
    for each in entries:
        if not _is_whole(each.read_bytes()):
            each.unlink()


def _is_whole(packed):
    stream = zlib.decompressobj()
    try:
        stream.decompress(packed)
    except zlib.error:
        return False
    return stream.eof


@contextmanager
def kept_in(folder):
    """Keep what is compiled meanwhile in another folder; None: nowhere, as for users who said nothing."""
    before = jax.config.jax_compilation_cache_dir
    _keep_in(folder)
    yield
    _keep_in(before)


def _keep_in(folder):
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", folder)
