"""Compiling little: many tests train the same small model, and compiling is most of their time.

`conftest.py` has JAX keep what a session compiles in a folder, where programs that tests start find it too.
"""

from contextlib import contextmanager

import jax
from jax.experimental.compilation_cache import compilation_cache


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
