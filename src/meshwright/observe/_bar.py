"""A progress bar for loops other than that of `fit`: predictions, evaluations, your own."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from meshwright.base._internal import number

T = TypeVar("T")


class Bar(Iterator[T]):
    """An iterator with a progress bar, which is shown on stderr if that is a terminal.

    Example:
      >>> bar = mw.observe._internal.Bar([0.5, 0.25], total=2, description="evaluating")
      >>> for loss in bar:
      ...     bar.set_postfix(loss=loss)
    """

    def __init__(self, items: Iterable[T], total: int | None, description: str, *, shown: bool = True):
        self._postfix: dict[str, float] = {}
        # In a pipe or a file, where nothing can be redrawn, the bar would print a line for each item.
        self._is_drawn = shown and sys.stderr is not None and sys.stderr.isatty()
        self._items = _drawn(items, total, description, self._postfix) if self._is_drawn else iter(items)

    def __next__(self) -> T:
        """Return the next item."""
        return next(self._items)

    def set_postfix(self, **values: Any) -> None:
        """Show numbers, such as the newest loss, beside the bar."""
        if self._is_drawn:
            self._postfix |= {name: float(value) for name, value in values.items()}


def _drawn(
    items: Iterable[T], total: int | None, description: str, postfix: dict[str, float]
) -> Iterator[
    T
]:  # a function, not a method, so that it ends as soon as the last reference to the bar is gone
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task(description, total=total)
        for item in items:
            yield item
            beside = "".join(f" {name} {number(value)}" for name, value in postfix.items())
            progress.update(task, advance=1, description=description + beside)
