"""A start of the program that compiles its step for the cache, and does nothing else."""

import os

_ASKED_BY = "MESHWRIGHT_ONLY_COMPILE"
"""The environment variable in which the launcher asks for it."""


def only_compiles() -> bool:
    """Return whether this process shall only compile."""
    return bool(os.environ.get(_ASKED_BY))
