"""Calls of users' functions by argument name: a function gets the arguments that it declares, no others."""

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from itertools import takewhile
from typing import Any, Literal, Union, get_args, get_origin

from meshwright.errors import UsageError, did_you_mean

_BY_KEYWORD = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_OTHER_WORDS = {"rng": "key", "rngs": "key", "prng_key": "key", "is_training": "train", "training": "train"}
"""Argument names of other libraries, with ours."""


def by_name(
    function: Callable[..., Any],
    available: Sequence[str],
    role: str = "loss",
    required: Sequence[str | tuple[str, ...]] = ("params", "batch"),
) -> Callable[..., Any]:
    """Return a function that takes all available arguments as keywords and passes on the declared ones.

    Arguments that a partial has fixed stay fixed. Parameters that are not available keep their defaults.
    `**rest` receives all arguments that have no parameter of their own.
    """
    parameters, fixed = _parameters(function, role), _fixed(function)
    first = takewhile(lambda p: p.kind is Parameter.POSITIONAL_ONLY and p.name in available, parameters)
    positional = [parameter.name for parameter in first]
    named = {p.name for p in parameters if p.kind in _BY_KEYWORD}
    if any(p.kind is Parameter.VAR_KEYWORD for p in parameters):
        named |= {*available} - {*positional}
    keywords = [name for name in available if name in named - fixed]
    unknown = [p.name for p in parameters if _must_be_given(p) and p.name not in available]
    names_in_use = {*positional, *keywords, *fixed}
    alternatives = [(names,) if isinstance(names, str) else names for names in required]
    missing = [names for names in alternatives if not names_in_use.intersection(names)]
    if unknown or missing:
        raise _misfit(function, role, available, unknown, missing)

    def call(**everything: Any) -> Any:
        values = (everything[name] for name in positional)
        return function(*values, **{name: everything[name] for name in keywords})

    return call


def declares(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function has a parameter of this name that no partial has fixed."""
    return name in {p.name for p in _parameters(function, "function")} - _fixed(function)


def num_required(function: Callable[..., Any], role: str = "function") -> int:
    """Return the number of arguments that a function requires, except those that a partial has fixed."""
    fixed = _fixed(function)
    return sum(_must_be_given(p) for p in _parameters(function, role) if p.name not in fixed)


def in_order(
    function: Callable[..., Any],
    values: Mapping[str, Any],
    role: str = "function",
    *,
    named: Mapping[str, Any] = {},
    optional: str = "",
    hint: str = "",
) -> functools.partial[Any]:
    """Return the call of a function with values by position, each with its name.

    A parameter with a default gets a value only by its name, so those of the user's own keep theirs.
    """
    every, fixed = {**values, **named}, _fixed(function)
    free = [p for p in _parameters(function, role) if p.name not in fixed]
    value_of = {p.name: name for p in free if (name := _OTHER_WORDS.get(p.name, p.name)) in every}
    places = [p for p in free if _must_be_given(p) and p.kind is not p.KEYWORD_ONLY]
    others = [p for p in free if p not in places and p.kind in _BY_KEYWORD]
    by_name = {p.name: value_of[p.name] for p in others if p.name in value_of}
    order = [name for name in values if name not in by_name.values()]
    num = sum(value_of.get(p.name) not in named for p in places)
    has_rest = any(p.kind is p.VAR_POSITIONAL for p in free)
    if num < len(order) and not has_rest and optional in order:
        order.remove(optional)
    is_unknown = any(_must_be_given(p) and p.name not in by_name for p in others)
    if is_unknown or num > len(order) or (num < len(order) and not has_rest):
        left_out = f" `{optional}` may be left out." if optional else ""
        raise UsageError(
            f"the {role} {_title(function)}{inspect.signature(function)} cannot be called: it is called with "
            f"({', '.join(values)}).{left_out} Arguments of your own need a default.{hint}"
        )
    rest = iter(order)
    placed = [every[name if (name := value_of.get(p.name)) in named else next(rest)] for p in places]
    placed += [values[name] for name in rest]
    return functools.partial(
        function, *placed, **{name: every[value_name] for name, value_name in by_name.items()}
    )


def _parameters(function: Callable[..., Any], role: str) -> list[Parameter]:
    if not callable(function):
        raise UsageError(f"the {role} must be a function; found {function!r} ({type(function).__name__}).")
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise UsageError(
            f"the {role} {_title(function)} has no signature that says which arguments it takes.\n"
            f"  Wrap it: lambda params, batch: {_title(function)}(params, batch)."
        ) from None


def _fixed(function: Callable[..., Any]) -> set[str]:
    """Return the names that a partial has fixed, which its signature still shows as parameters."""
    inner = inspect.unwrap(function)
    return set(inner.keywords) if isinstance(inner, functools.partial) else set()


def _must_be_given(parameter: Parameter) -> bool:
    several = parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return parameter.default is Parameter.empty and not several


def _misfit(
    function: Callable[..., Any],
    role: str,
    available: Sequence[str],
    unknown: Sequence[str],
    missing: Sequence[tuple[str, ...]],
) -> UsageError:
    lines = [f"the {role} {_title(function)}{inspect.signature(function)} cannot be called:"]
    for name in unknown:
        our_name = _OTHER_WORDS.get(name)
        hint = f" Did you mean {our_name!r}?" if our_name in available else did_you_mean(name, available)
        lines.append(f"  it asks for {name!r}, which is not available.{hint}")
    lines += [f"  it does not take {' or '.join(map(repr, names))}, as a {role} must." for names in missing]
    return UsageError("\n".join([*lines, f"  Available: {', '.join(available)}."]))


def _title(function: Callable[..., Any]) -> str:
    inner = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inner.func
    return getattr(inner, "__qualname__", type(inner).__qualname__)


def spelled(annotation: Any) -> str:
    """Return a type as text for errors: "int or a function"."""
    if get_origin(annotation) in (types.UnionType, Union):
        return " or ".join(dict.fromkeys(map(spelled, get_args(annotation))))
    if get_origin(annotation) is Callable:
        return "a function"
    if get_origin(annotation) is Literal:
        return " or ".join(map(repr, get_args(annotation)))
    if annotation in (None, types.NoneType):
        return "none"
    if get_origin(annotation) is Mapping:
        key, value = map(spelled, get_args(annotation))
        return f"a mapping of {key} to {value}"
    return (
        annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    )
