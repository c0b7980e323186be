"""Compiling little: most tests of a room train the same small model, and compiling is most of their time."""

from contextlib import contextmanager

import jax
from jax.experimental.compilation_cache import compilation_cache


@contextmanager
def kept_in(folder):
    """Keep what is compiled meanwhile, and use it again."""
    kept = {"jax_compilation_cache_dir": str(folder), "jax_persistent_cache_min_compile_time_secs": 0.0}
    before = {name: getattr(jax.config, name) for name in kept}
    _configure(kept)
    yield
    _configure(before)


def _configure(values):
    compilation_cache.reset_cache()
    for name, value in values.items():
        jax.config.update(name, value)
