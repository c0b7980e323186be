"""Optional packages, which an extra of Meshwright installs. They are imported where they are used."""

import importlib
from typing import Any

from meshwright.errors import UsageError


def import_extra(module: str, *, extra: str, what: str) -> Any:
    """Return a module, imported, for which users install an extra; `what` needs it, the error says.

    Only a package that is missing is an error of this kind, also if it is one that the module needs itself.
    What is installed but broken raises its own `ImportError`, which another installation may not mend.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise not_installed(error.name or module, extra=extra, what=what) from None


def not_installed(module: str, *, extra: str, what: str) -> UsageError:
    """Return the error about a module that is not there."""
    return UsageError(
        f"{what} needs the package {module.partition('.')[0]}, which is not installed.\n"
        f"  Install it: pip install 'meshwright[{extra}]'."
    )
