"""Optional packages, which an extra of Meshwright installs. They are imported where they are used."""

import importlib
from typing import Any

from meshwright.errors import UsageError


def import_extra(module: str, *, extra: str, needed_by: str) -> Any:
    """Return a module, imported, for which users install an extra; the error names `needed_by`.

    Only a missing package is an error of this kind, also one that the module itself needs. A package that is
    installed but broken raises its own `ImportError`, which another installation may not mend.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise not_installed(error.name or module, extra=extra, needed_by=needed_by) from None


def not_installed(module: str, *, extra: str, needed_by: str) -> UsageError:
    """Return the error about a missing module."""
    return UsageError(
        f"{needed_by} needs the package {module.partition('.')[0]}, which is not installed.\n"
        f"  Install it: pip install 'meshwright[{extra}]'."
    )
