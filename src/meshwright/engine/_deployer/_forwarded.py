"""Methods that an object forwards to one of its parts."""

from collections.abc import Callable
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from meshwright.base._internal import explained_as

T = TypeVar("T")
P = ParamSpec("P")


class Forwarded(Generic[P, T]):
    """A method of a class that calls `method` of the attribute `part`.

    It keeps that method's arguments, types and docstring. Errors about arguments that it does not have name
    the class.
    """

    def __init__(self, part: str, method: Callable[Concatenate[Any, P], T]):
        self._part, self._method = part, method

    def __set_name__(self, owner: type, name: str) -> None:
        self._method = explained_as(f"{owner.__name__}.{name}")(self._method)

    def __get__(self, instance: Any, owner: type) -> Callable[P, T]:
        method: Any = self._method
        return method if instance is None else MethodType(method, getattr(instance, self._part))
