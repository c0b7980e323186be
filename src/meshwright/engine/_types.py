"""A check that the fields of a dataclass have the types that it declares.

It checks numbers, strings, booleans, functions, sequences, mappings and dataclasses. Other types pass.
"""

import collections.abc
import dataclasses
import numbers
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from meshwright.base._internal import spelled
from meshwright.errors import UsageError

PLAIN = (str, bool, types.NoneType)
NUMBERS = {int: numbers.Integral, float: numbers.Real}
"""NumPy's numbers are accepted, too, and whole numbers for floats. A boolean is not accepted as a number."""


def check_types(description: Any) -> None:
    """Check the types of the fields of a dataclass."""
    kind = type(description)
    hints = get_type_hints(kind)
    problems = [
        f"{kind.__name__}.{name} is {_shown(value)}; it must be {spelled(wanted)}."
        for field in dataclasses.fields(description)
        for name, value, wanted in _items(field.name, getattr(description, field.name), hints[field.name])
        if not _fits(value, wanted)
    ]
    if problems:
        raise UsageError("\n".join(problems))


def check_least(least: int, owner: Any, *names: str) -> None:
    """Check that fields that are whole numbers are at least so large."""
    for name in names:
        value = getattr(owner, name)
        if isinstance(value, int) and value < least:
            raise UsageError(f"{type(owner).__name__}.{name} is {value}; it must be at least {least}.")


def _items(name: str, value: Any, wanted: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield a value, or each value of a mapping, with its name and type."""
    if get_origin(wanted) is Mapping and isinstance(value, Mapping):
        for key, each in value.items():
            yield f"{name}[{key!r}]", each, get_args(wanted)[1]
    else:
        yield name, value, wanted


def _fits(value: Any, wanted: Any) -> bool:
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin is Literal:
        return value in arguments
    if wanted in NUMBERS:
        return isinstance(value, NUMBERS[wanted]) and not isinstance(value, bool)
    if wanted in PLAIN or (isinstance(wanted, type) and dataclasses.is_dataclass(wanted)):
        return isinstance(value, wanted)
    if origin is collections.abc.Callable:
        return callable(value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(_fits(each, arguments[1]) for each in value.values())
    if origin is tuple and Ellipsis in arguments:
        return isinstance(value, tuple | list) and all(_fits(each, arguments[0]) for each in value)
    return True


def _shown(value: Any) -> str:
    """Return a number or a short string as it is, and of other values the type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = repr(value) if isinstance(value, str | numbers.Number) else ""
    return text if 0 < len(text) < 80 else f"of type {type(value).__name__}"
