"""A bar for loops that are not `fit`'s: predictions, evaluations, loops of one's own."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from meshwright.metrics._numbers import number

T = TypeVar("T")


class Bar(Iterator[T]):
    """An iterator over `items` that shows how many of `total` were taken, if `shown` and on a terminal."""

    def __init__(self, items: Iterable[T], total: int | None, description: str, *, shown: bool = True):
        self._postfix: dict[str, float] = {}
        # In a pipe or a file, where nothing can be redrawn, it would be a line for each item.
        self._is_drawn = shown and sys.stderr.isatty()
        self._items = _drawn(items, total, description, self._postfix) if self._is_drawn else iter(items)

    def __next__(self) -> T:
        """Return the next item."""
        return next(self._items)

    def set_postfix(self, **values: Any) -> None:
        """Show numbers, such as the newest loss, beside the bar. Unseen, they are not waited for."""
        if self._is_drawn:
            self._postfix |= {name: float(value) for name, value in values.items()}


def _drawn(
    items: Iterable[T], total: int | None, description: str, postfix: dict[str, float]
) -> Iterator[T]:  # no method: with a bar that is dropped, it ends at once
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task(description, total=total)
        for item in items:
            yield item
            beside = "".join(f" {name} {number(value)}" for name, value in postfix.items())
            progress.update(task, advance=1, description=description + beside)
