"""The kinds of examples: indexed, a function of the epoch, an iterable, an iterator."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from meshwright.errors import ExamplesError

_GATHERING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def is_indexed(examples: Any) -> bool:
    """Return whether `examples` can be read in any order: they have a length and are indexed."""
    # PyTorch's IterableDataset has the methods, one of which always raises.
    is_iterated = any(kind.__name__ == "IterableDataset" for kind in type(examples).__mro__)
    return hasattr(examples, "__len__") and hasattr(examples, "__getitem__") and not is_iterated


def by_epoch(examples: Callable[..., Any]) -> Callable[[int], Any]:
    """Return a function of the epoch, of one that takes it (its one required argument) or takes none.

    Raises:
      ExamplesError: the function requires more.
    """
    required = [
        parameter.name
        for parameter in inspect.signature(examples).parameters.values()
        if parameter.default is parameter.empty and parameter.kind not in _GATHERING
    ]
    if len(required) > 1:
        raise ExamplesError(
            f"a function that gives examples takes the epoch or nothing; this one requires {required}.\n"
            "  Bind the rest: functools.partial(function, ...)."
        )
    return examples if required else lambda epoch: examples()


def iterated(examples: Any) -> Iterable[Any]:
    """Return what a function of the epoch returned.

    Raises:
      ExamplesError: it cannot be iterated over.
    """
    if not isinstance(examples, Iterable):
        raise ExamplesError(
            f"the function that gives examples returned a {type(examples).__name__}.\n"
            "  Return an iterable of them, or what can be indexed and has a length."
        )
    return examples


def takes(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function has a parameter of this name; of some written in C that is not known."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
