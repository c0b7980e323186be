"""The name of a value and the values that it was made from, as far as the value itself shows them.

    a frozen dataclass      its type and its fields; our own factories make these: `mw.engine.every(100)` is
                            meshwright.processes.Every(num_steps=100)
    a partial               the function and its arguments
    a function              its name and the variables that it closes over
    a named tuple           its type and fields; if all are functions that one factory made, as of an optax
                            transformation, the factory and the variables of all
    a container             its items

The code of a function is not read, and no private names of packages are used. So a variable in which a
function counts its calls is shown like any other variable; a function with a state is better an object.

Values that may differ between two processes (addresses in memory, the order of a set) are not shown. Data
are not shown either: an array is shown as `float32[8, 4]`, another object as `<type>`. Global variables that
a function reads are not followed.
"""

import contextlib
import dataclasses
import enum
import functools
import inspect
import os
import re
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

MAX_ITEMS = 64  # a longer sequence or mapping is taken for data
MAX_LENGTH = 200  # of a string that is shown

Values = Mapping[str, Any]
"""Values by the names of their variables, arguments, fields or keys, or by their indices."""


def made_from(value: Any) -> tuple[str, Values]:
    """Return the name of a value, "" for a list or dictionary, and the values that it was made from."""
    if isinstance(value, PartitionSpec | re.Pattern):
        return _plain(value), {}
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _of_container(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (f.name for f in dataclasses.fields(value) if f.repr)
        return name_of(type(value)), {name: getattr(value, name, None) for name in names}
    return _of_function(value) if callable(value) else (_plain(value), {})


def name_of(named: Any) -> str:
    """Return the dotted name of a function or type, in the outermost package that has it.

    The module of the package in which it is defined is left out: it may change with the package's version.
    """
    module, qualname = (
        getattr(named, "__module__", None) or "builtins",
        named.__qualname__.replace(".<locals>", ""),
    )
    first = qualname.split(".")[0]
    defined = vars(sys.modules.get(module, types)).get(first)
    parts = module.split(".")
    for end in range(1, len(parts)):
        package = sys.modules.get(".".join(parts[:end]))
        if defined is not None and package is not None and vars(package).get(first) is defined:
            parts = parts[:end]
            break
    return ".".join([*(part for part in parts if not part.startswith("_") or part == "__main__"), qualname])


def _plain(value: Any) -> str:
    match value:
        case str() | bytes() if len(value) > MAX_LENGTH:
            return f"<{type(value).__name__} of {len(value)}>"
        case enum.Enum():
            return f"{name_of(type(value))}.{value.name}"
        case np.generic() | np.ndarray() | jax.Array() | jax.ShapeDtypeStruct():
            return _array(value)
        case str() | bytes() | int() | float() | complex() | range() | None | re.Pattern():
            return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
        case PartitionSpec():
            return f"P({', '.join(map(repr, value))})"
        case os.PathLike():
            return repr(os.fspath(value))
        case np.dtype():
            return value.name
        case _:
            return f"<{name_of(type(value))}>"


def _array(x: Any) -> str:
    """Return the value of an array without dimensions, which is a setting; of other arrays only the shape."""
    is_number = isinstance(x, np.generic | np.ndarray | jax.Array) and not x.shape
    if is_number and not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        return f"{x.dtype}({np.asarray(x).item()!r})"
    return f"{x.dtype}{list(x.shape)}"


def _of_container(value: Any) -> tuple[str, Values]:
    if hasattr(value, "_fields"):
        return _of_named_tuple(value)
    items = list(value.values() if isinstance(value, Mapping) else value)
    if len(items) > MAX_ITEMS or (_is_sequence(value) and any(_is_data(item) for item in items)):
        return f"<{type(value).__name__} of {len(items)}>", {}
    if not items:
        return "{}" if isinstance(value, Mapping) else "[]", {}
    if isinstance(value, Mapping):
        return "", dict(zip(map(str, value), items, strict=True))
    return "", _numbered(
        items if _is_sequence(value) else sorted(items, key=lambda x: (len(repr(x)), repr(x)))
    )


def _is_sequence(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_data(value: Any) -> bool:
    """Return whether a sequence of such values is a sequence of examples."""
    return isinstance(value, Mapping) or (isinstance(value, np.ndarray | jax.Array) and value.ndim > 0)


def _numbered(items: Iterable[Any]) -> Values:
    return {str(i): item for i, item in enumerate(items)}


def _of_function(value: Any) -> tuple[str, Values]:
    if isinstance(value, functools.partial):
        name, parts = made_from(value.func)
        return name, {**parts, **_arguments(value)}
    if isinstance(value, types.MethodType):
        return f"{name_of(type(value.__self__))}.{value.__name__}", {"self": value.__self__}
    if isinstance(value, types.FunctionType):
        return name_of(value), _variables(value)
    if hasattr(value, "__wrapped__"):  # what `jax.jit` and others return
        return made_from(value.__wrapped__)
    return (name_of(value) if hasattr(value, "__qualname__") else f"<{name_of(type(value))}>"), {}


def _arguments(call: functools.partial) -> Values:
    """Return the arguments of a partial by parameter name, or by index if the parameters are not known."""
    try:
        return inspect.signature(call.func).bind_partial(*call.args, **call.keywords).arguments
    except (TypeError, ValueError):
        return {**_numbered(call.args), **call.keywords}


def _variables(function: types.FunctionType) -> Values:
    """Return the variables that a function closes over and, if a function defined it, its defaults."""
    values: dict[str, Any] = {}
    if _factory(function):
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
        values = {p.name: p.default for p in parameters if p.default is not None and p.default is not p.empty}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # the variable has no value yet
            values[name] = cell.cell_contents
    return values


def _factory(function: Any) -> str:
    """Return the name of the function in which a function was defined, or "" for a function of a module."""
    return function.__qualname__.rpartition(".<locals>.")[0]


def _of_named_tuple(value: Any) -> tuple[str, Values]:
    """Return the factory that made all functions of a named tuple, as for an optax transformation.

    Some functions may belong to a module instead; they have no variables.
    """
    functions = [item for item in value if isinstance(item, types.FunctionType)]
    if len(functions) < len(value):
        return _of_methods(value)
    variables = {item: _variables(item) for item in functions if _factory(item)}
    inner = [items for values in variables.values() for items in values.values() if isinstance(items, tuple)]
    # For instance `init`, if a factory wrapped only `update` of an inner transformation.
    of_inner = {id(item) for items in inner for item in items}
    outer = {item: values for item, values in variables.items() if id(item) not in of_inner}
    if len({(item.__module__, _factory(item)) for item in outer}) != 1:
        return name_of(type(value)), value._asdict()
    name = name_of(next(iter(outer))).rpartition(".")[0]
    parts = _parts_of_chain(value, list(outer.values()))
    return name, parts or {key: x for values in outer.values() for key, x in values.items()}


def _of_methods(value: Any) -> tuple[str, Values]:
    """Return the object whose methods a named tuple contains, as of `optax.MultiSteps`, or its fields."""
    owners = [item.__self__ if isinstance(item, types.MethodType) else None for item in value]
    if owners and hasattr(owners[0], "__dict__") and all(owner is owners[0] for owner in owners):
        return name_of(type(owners[0])), vars(owners[0])
    return name_of(type(value)), value._asdict()


def _parts_of_chain(value: Any, variables: Sequence[Values]) -> Values:
    """Return the parts of a chain of transformations, or {} for anything else.

    Each function of a chain closes over a tuple of functions. The n-th functions of all tuples are part n.
    """
    columns = [items for values in variables for items in values.values()]
    if not len(columns) == len(variables) == len(value) or not all(map(_are_functions, columns)):
        return {}
    if len(set(map(len, columns))) != 1:
        return {}
    return _numbered(type(value)(*row) for row in zip(*columns, strict=True))


def _are_functions(items: Any) -> bool:
    return isinstance(items, tuple) and all(map(callable, items))
