"""Agreement of all processes that each has a result, before any uses its own."""

import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

from meshwright import process

T = TypeVar("T")


def in_step(results: Iterator[T], about: str, said: Callable[[T], str]) -> Iterator[T]:
    """Yield `results`, each after all processes have one. Otherwise a process with more would wait for ever.

    Raises:
      UsageError: A process has none left, or a different one; raised on every process.
    """
    for result in itertools.chain(results, [None]):
        text = "none are left" if result is None else said(result)
        process.compare(about, lambda text=text: {"next": text})
        if result is not None:
            yield result
