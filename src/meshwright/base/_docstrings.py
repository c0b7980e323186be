"""Docstrings of attributes, put where `help()` shows them.

Python does not keep docstrings of attributes, so `help()` of a class does not show the texts below its
fields. Here they are read from the source, once, when the class is made.
"""

import ast
import inspect
import linecache
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def documented(cls: type[T]) -> type[T]:
    """Add an `Attributes:` section to the docstring of a class, from the texts below its fields.

    If there is no source, because only compiled files are installed, the docstring does not change.
    """
    texts = dict(_texts(_classes(cls.__module__).get(cls.__qualname__)))
    if texts and cls.__doc__:
        entries = (f"  {name}: {text}" for name, text in texts.items())
        cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__), "", "Attributes:", *entries])
    return cls


# The classes of one file are made one after the other.
@lru_cache(1)
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """Return the classes of a module's file by name; {} if there is no source."""
    source = sys.modules[module]
    lines = linecache.getlines(source.__file__ or "", vars(source))
    return {node.name: node for node in ast.parse("".join(lines)).body if isinstance(node, ast.ClassDef)}


def _texts(cls: ast.ClassDef | None) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each field with a text below it, indented as in an `Args:` section."""
    for field, below in pairwise(cls.body if cls else ()):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text).replace("\n", "\n    ")
