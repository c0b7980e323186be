"""Agreement of all processes that each has a result, before any uses its own."""

import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

from meshwright.processes import _internal as processes

T = TypeVar("T")


def in_step(results: Iterator[T], about: str, description: Callable[[T], str]) -> Iterator[T]:
    """Yield `results`, each after all processes have one. Otherwise a process with more would wait for
    ever.
    """
    result: list[T] = []

    def next_description() -> dict[str, str]:
        result[:] = itertools.islice(results, 1)
        return {"next": description(result[0]) if result else "none are left"}

    while True:
        processes.compare(about, next_description)
        if not result:
            return
        yield result[0]
