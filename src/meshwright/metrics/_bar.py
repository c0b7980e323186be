"""A bar for what has no metrics: predictions, evaluations."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def progress(items: Iterable[T], total: int | None, description: str) -> Iterator[T]:
    """Yield `items`, showing on a terminal how many of `total` were taken; nothing is shown elsewhere."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, description, total=total, console=Console(stderr=True), transient=True)
