"""Loading of the user's functions, given as `module:name`."""

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshwright.cli._guess import instead_of_target
from meshwright.errors import UsageError, did_you_mean


def add_target(command: argparse.ArgumentParser) -> None:
    """Add the argument that names the function of an experiment."""
    command.add_argument(
        "target",
        metavar="module:function",
        help="the function that returns the experiment: gpt:experiment, or gpt.py:experiment",
    )


def load(target: str) -> Callable[..., Any]:
    """Return the function `module:function`; raises as `find` does."""
    return find(target, "function", "experiment", callable)


def as_module(target: str) -> str:
    """Return `gpt:experiment` for `gpt.py:experiment`, and `folder.gpt:…` for `folder/gpt.py:…`.

    Any other text is returned unchanged.
    """
    file, colon, name = target.rpartition(":")
    if not colon or not file.endswith(".py"):
        return target
    path = Path(file)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    parts = path.with_suffix("").parts
    return f"{'.'.join(parts)}:{name}" if all(part.isidentifier() for part in parts) else target


def find(target: str, kind: str, example: str, fits: Callable[[Any], bool]) -> Any:
    """Return the value of `module:name` or `module.py:name`, looked up also in the current directory."""
    module_name, colon, name = as_module(target).partition(":")
    if not (module_name and colon and name) or "/" in module_name or module_name.endswith(".py"):
        raise UsageError(_no_target(target, kind, example))
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but a module that it imports does not
        raise UsageError(
            f"there is no module {module_name!r}: {error}.\n"
            f"  Looked in the current directory ({Path.cwd()}) and the installed packages."
        ) from None
    value = getattr(module, name, None)
    if not fits(value):
        names = [key for key, other in vars(module).items() if fits(other) and not key.startswith("_")]
        hint = did_you_mean(name, names)
        raise UsageError(f"module {module_name} has no {kind} {name!r}.{hint}")
    return value


def _no_target(target: str, kind: str, example: str) -> str:
    """Return the error for a target that is not `module:name`, with what to write instead."""
    if instead := instead_of_target(target):
        return instead
    file, _, name = target.partition(":")
    path, name = Path(file), name or example
    problem = f"expected module:{kind}, as gpt:{example}, or file.py:{kind}; found {target!r}."
    if path.suffix != ".py":
        return problem
    if path.is_file() and as_module(f"{file}:{name}") != f"{file}:{name}":
        return f"{problem} Write {file}:{name}."
    return (
        f"{problem}\n  The file must be below the current directory, and its folders must have names that "
        "Python can import. Otherwise go to its folder:\n"
        f"    cd {path.parent} && meshwright … {path.name}:{name}"
    )
