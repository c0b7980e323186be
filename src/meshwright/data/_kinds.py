"""The kinds of examples: indexed, a function of the epoch, an iterable, an iterator."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from meshwright.errors import ExamplesError

_GATHERING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def is_indexed(examples: Any) -> bool:
    """Return whether `examples` have a length and can be indexed, so that they can be read in any order.

    Example:
      >>> mw.data._internal.is_indexed([1, 2]), mw.data._internal.is_indexed(iter([1, 2]))
      (True, False)
    """
    # PyTorch's IterableDataset has both methods, but one of them always raises.
    is_iterated = any(kind.__name__ == "IterableDataset" for kind in type(examples).__mro__)
    return hasattr(examples, "__len__") and hasattr(examples, "__getitem__") and not is_iterated


def by_epoch(examples: Callable[..., Any]) -> Callable[[int], Any]:
    """Return a function of the epoch, made of a function that takes the epoch or nothing.

    Example:
      >>> mw.data._internal.by_epoch(lambda: [1, 2])(0)
      [1, 2]
    """
    required = [
        parameter.name
        for parameter in inspect.signature(examples).parameters.values()
        if parameter.default is parameter.empty and parameter.kind not in _GATHERING
    ]
    if len(required) > 1:
        raise ExamplesError(
            f"a function that returns examples takes the epoch or nothing; this one requires {required}.\n"
            "  Bind the other arguments: functools.partial(function, ...)."
        )
    return examples if required else lambda epoch: examples()


def iterated(examples: Any) -> Iterable[Any]:
    """Return the result of a function of the epoch, if it is iterable."""
    if not isinstance(examples, Iterable):
        raise ExamplesError(
            f"the function that returns examples returned a value of type {type(examples).__name__}.\n"
            "  Return an iterable of examples, or an object with __len__ and __getitem__."
        )
    return examples


def takes(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function has a parameter with this name; False for C functions without a signature."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
