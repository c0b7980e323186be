"""Results that every process must have one of, before any goes on with its own."""

import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

from meshwright import process

T = TypeVar("T")


def in_step(results: Iterator[T], about: str, said: Callable[[T], str]) -> Iterator[T]:
    """Yield `results`, and before each see that all processes have one: who has more would wait for ever.

    Args:
      about: what the results are, as the object of a sentence.
      said: what of a result must be the same on all processes.

    Raises:
      UsageError: on every process, when one has none left, or another one.
    """
    for result in itertools.chain(results, [None]):
        text = "none are left" if result is None else said(result)
        process.compare(about, lambda text=text: {"next": text})
        if result is not None:
            yield result
