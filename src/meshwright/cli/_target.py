"""What users' modules hold, found by `module:name`."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshwright.errors import UsageError, nearest


def load(target: str) -> Callable[..., Any]:
    """Return the function `module:function`, as `find` does."""
    return find(target, "function", "experiment", callable)


def find(target: str, kind: str, example: str, fits: Callable[[Any], bool]) -> Any:
    """Return what `module:name` is, with the current directory on the path.

    Args:
      kind: what it should be, for people, and an `example` of a name.
      fits: whether something is that.

    Raises:
      UsageError: there is no such module, or nothing of that kind and name in it.
    """
    module_name, colon, name = target.partition(":")
    if "/" in module_name or module_name.endswith(".py"):
        path = Path(module_name)
        raise UsageError(
            f"{target!r} names a file: write module:{kind}, here {path.stem}:{name or example}, "
            f"in the folder {path.parent}."
        )
    if not (module_name and colon and name):
        raise UsageError(f"{target!r} does not name a {kind}: write module:{kind}, as my.module:{example}.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and one that it needs is not
        raise UsageError(
            f"there is no module {module_name!r}: {error}.\n"
            f"  Looked in the current directory ({Path.cwd()}) and the installed packages."
        ) from None
    found = getattr(module, name, None)
    if not fits(found):
        close = nearest(name, [key for key, value in vars(module).items() if fits(value)])
        hint = f" Did you mean {close!r}?" if close else ""
        raise UsageError(f"module {module_name} has no {kind} {name!r}.{hint}")
    return found
