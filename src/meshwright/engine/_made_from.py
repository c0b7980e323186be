"""What a value is called and what it was made from, read off the value itself.

A function is called by its name and was made from the variables that it closes over; what a factory
returned, from the factory's: `mw.every(100)` is `meshwright.when.every.<lambda>` of num_steps=100. A partial
is the function with arguments, a dataclass its type with fields, an optax transformation the factory of its
two functions with the variables of both.

Nothing is shown that may differ between two processes (addresses, the order of a set) and no data: arrays
as `float32[8, 4]`, what is not known as `<type>`. Global variables that a function reads are not followed.
"""

import contextlib
import dataclasses
import dis
import enum
import functools
import inspect
import os
import re
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import PartitionSpec

MAX_ITEMS = 64  # of a sequence or mapping: more are data
MAX_LENGTH = 200  # of a text

Values = Mapping[str, Any]
"""Values by the names of the variables, arguments, fields, keys or places that they have."""


def made_from(value: Any) -> tuple[str, Values]:
    """Return what `value` is called, "" for a mere container, and what it was made from, if anything."""
    if isinstance(value, PartitionSpec | re.Pattern):
        return _plain(value), {}
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _of_container(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = (f.name for f in dataclasses.fields(value) if f.repr)
        return name_of(type(value)), {name: getattr(value, name, None) for name in shown}
    return _of_function(value) if callable(value) else (_plain(value), {})


def name_of(thing: Any) -> str:
    """Return the name of a function or type in the outermost package that lists it, and of no private module.

    Where inside a package something is defined is no setting, and changes with the package's version.
    """
    module, qualname = (
        getattr(thing, "__module__", None) or "builtins",
        thing.__qualname__.replace(".<locals>", ""),
    )
    first = qualname.split(".")[0]
    defined = vars(sys.modules.get(module, types)).get(first)
    places = module.split(".")
    for end in range(1, len(places)):
        package = sys.modules.get(".".join(places[:end]))
        if defined is not None and package is not None and vars(package).get(first) is defined:
            places = places[:end]
            break
    return ".".join(
        [*(place for place in places if not place.startswith("_") or place == "__main__"), qualname]
    )


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
    """A number that happens to be an array is a setting; an array with dimensions is data."""
    is_number = isinstance(x, np.generic | np.ndarray | jax.Array) and not x.shape
    if is_number and not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        return f"{x.dtype}({np.asarray(x).item()!r})"
    return f"{x.dtype}{list(x.shape)}"


def _of_container(value: Any) -> tuple[str, Values]:
    if isinstance(value, optax.GradientTransformation):
        return _of_transformation(value)
    if hasattr(value, "_fields"):
        return name_of(type(value)), value._asdict()
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
    """Whether a sequence of such values is one of examples."""
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
        return name_of(value), _captured(value)
    if hasattr(value, "__wrapped__"):  # what `jax.jit` and others return
        return made_from(value.__wrapped__)
    return (name_of(value) if hasattr(value, "__qualname__") else f"<{name_of(type(value))}>"), {}


def _arguments(call: functools.partial) -> Values:
    """Return what a partial gives, by the names of the parameters where these can be read."""
    try:
        return inspect.signature(call.func).bind_partial(*call.args, **call.keywords).arguments
    except (TypeError, ValueError):
        return {**_numbered(call.args), **call.keywords}


def _captured(function: types.FunctionType) -> Values:
    """Return what a function closes over.

    A helper defined beside it and captured under its own name is code: what that captured is shown instead.
    """
    parts: dict[str, Any] = {}
    waiting, seen = [function], {function}
    while waiting:
        for name, value in _variables(waiting.pop()).items():
            if not _is_helper(value, name, function):
                parts.setdefault(name, value)
            elif value not in seen:
                waiting.append(value)
                seen.add(value)
    return parts


def _variables(function: types.FunctionType) -> Values:
    """Return the variables of the closure and, of a function made by another, its defaults."""
    found: dict[str, Any] = {}
    if _factory(function):
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
        found = {p.name: p.default for p in parameters if p.default is not None and p.default is not p.empty}
    assigned = {each.argval for each in dis.get_instructions(function) if each.opname == "STORE_DEREF"}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # the variable has no value yet
            if name not in assigned:
                found[name] = cell.cell_contents
            elif name in _parameters_of_factory(function):
                found[name] = _as_given(cell.cell_contents)
    return found


def _parameters_of_factory(function: types.FunctionType) -> Iterable[str]:
    """Return the names of what a factory was given. Its other variables, where assigned, are memory."""
    name = function.__qualname__.split(".<locals>.")[0]
    factory = vars(sys.modules.get(function.__module__, types)).get(name)
    return inspect.signature(factory).parameters if isinstance(factory, types.FunctionType) else ()


def _as_given(value: Any) -> Any:
    """Return a number as it was: `optax.cosine_decay_schedule` makes its steps a float when first called."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_helper(value: Any, name: str, function: types.FunctionType) -> bool:
    return (
        isinstance(value, types.FunctionType)
        and value.__name__ == name
        and _factory(value) == _factory(function)
    )


def _factory(function: types.FunctionType) -> str:
    """Return the name of the function in which a function was made, "" for one that stands in a module."""
    enclosing = function.__qualname__.rpartition(".<locals>.")[0]
    return enclosing and f"{function.__module__}.{enclosing}"


def _of_transformation(tx: Any) -> tuple[str, Values]:
    """Return the factory of an optax transformation; a chain's parts are its transformations, numbered."""
    if not all(isinstance(function, types.FunctionType) for function in (tx.init, tx.update)):
        owner = getattr(tx.update, "__self__", None)
        has_settings = hasattr(owner, "__dict__")  # as `optax.MultiSteps`, whose methods the functions are
        return (name_of(type(owner)), vars(owner)) if has_settings else (name_of(type(tx)), tx._asdict())
    init, update = _captured(tx.init), _captured(tx.update)
    if tx.update.__qualname__.startswith("with_extra_args_support.") and "tx" in update:
        return made_from(update["tx"])
    if "init_fns" in init and "update_fns" in update:
        pairs = zip(init["init_fns"], update["update_fns"], strict=True)
        init, update = {}, _numbered(optax.GradientTransformation(*pair) for pair in pairs)
    if not _factory(tx.update) or (init and _factory(tx.init) != _factory(tx.update)):
        return name_of(type(tx)), tx._asdict()
    return name_of(tx.update).rpartition(".")[0], {**init, **update}
