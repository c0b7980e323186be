"""Trackers' packages, which need not be installed."""

import importlib
from typing import Any

from meshwright.errors import UsageError


def installed(package: str, attribute: str) -> Any:
    """Return the module `package`, which is known by an attribute.

    A run leaves folders called like its tracker behind, and those can be imported, too.

    Raises:
      UsageError: it is not installed.
    """
    try:
        found = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        found = None
    if not hasattr(found, attribute):
        raise UsageError(f"{package} is not installed.\n  Install it: pip install 'meshwright[{package}]'.")
    return found
