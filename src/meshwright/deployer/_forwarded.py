"""Methods that an object forwards to one of its parts."""

from collections.abc import Callable
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Forwarded(Generic[P, T]):
    """A method of a class that calls `method` of the attribute `part`.

    It keeps that method's arguments, types and docstring.
    """

    def __init__(self, part: str, method: Callable[Concatenate[Any, P], T]):
        self._part, self._method = part, method

    def __get__(self, instance: Any, owner: type) -> Callable[P, T]:
        method: Any = self._method
        return method if instance is None else MethodType(method, getattr(instance, self._part))
