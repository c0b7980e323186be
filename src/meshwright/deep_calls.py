"""Room for calls that go deep, as JAX's do when it traces.

CPython keeps the variables of calls in chunks of 16 KiB. It asks the system for a chunk when the last one is
full, and returns it when the first call in it ends. A loop whose calls begin in a new chunk does both at each
turn. A search for plans did so 3,000 times for each plan, which took a fifteenth of its time.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

_SLOTS = 1 << 16
"""The number of variables for which there is room; a chunk has 2,048."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def with_room(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return the function, whose calls and those within them are kept in one large chunk.

    CPython makes a chunk as large as a call says that it needs, and the calls within it use the rest.

    Args:
      function: The function.
    """

    def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        return function(*arguments, **named)

    call.__code__ = call.__code__.replace(co_stacksize=_SLOTS)
    return wraps(function)(call)
