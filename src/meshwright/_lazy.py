"""Names that a module loads when they are first used."""

import ast
import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any


def lazy_names(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a module, for the names that it imports for type checkers.

    The imports stand in its `if TYPE_CHECKING:`. So they are written once, for type checkers and for Python,
    and a program that uses one name does not wait for JAX because of the others.

    Args:
      module: The name of the module, `__name__`.
    """
    this = sys.modules[module]
    sources = functools.cache(lambda: _sources(this))

    def load(name: str) -> Any:
        if name == "_internal" and hasattr(this, "__path__"):
            value = importlib.import_module(f"{module}._internal")
        elif name in sources():
            value = _imported(*sources()[name], importer=module)
        else:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        setattr(this, name, value)
        return value

    return load, lambda: sorted(sources())


def _sources(module: Any) -> dict[str, tuple[str, str]]:
    """Return for each name the module and the attribute that it is imported from."""
    tree = ast.parse(module.__loader__.get_source(module.__name__))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in imports
        for alias in node.names
    }


def _imported(source: str, attribute: str, importer: str) -> Any:
    """Return the attribute of a module, or the module of that name inside of a package."""
    if source != importer:
        module = importlib.import_module(source)
        if hasattr(module, attribute):
            return getattr(module, attribute)
    return importlib.import_module(f"{source}.{attribute}")
