"""The progress of a run on the screen, and a progress bar for other loops.

On a terminal it is a panel (`_panel.py`), redrawn in place. In a notebook it is one line, replaced in place;
IPython is no dependency, but taken from `sys.modules`, as a notebook's kernel has imported it. In a pipe, a
file or a CI log, where nothing can be redrawn, each report is one line that makes sense alone. The first step
has a line, too, as soon as its metrics are known:

    2026-11-20T18:20:01 step=50/900 loss=1.235 examples_per_second=41300 input_wait=0.03 left=0:00:12
"""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, TextIO, TypeVar

from meshwright.base._internal import duration, local_time, number, print_line
from meshwright.errors import printable
from meshwright.observe._kinds import Values, numbers
from meshwright.observe._progress import Progress, loss_first
from meshwright.processes._internal import Tick

T = TypeVar("T")


if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

# Steps and reports each redraw at this interval, so ten times a second together. With one interval for both,
# a report that follows right after a step would not be visible before the next step ends.
_REDRAW_SECONDS = 0.2


class Console:
    """A writer that shows reports on the screen. Its `on_step` keeps the display alive between reports.

        with Console(max_steps=900) as console:
            fit(..., log=logger(console), on_step=console.on_step)

    Inside `with`, on a UTF-8 terminal, it shows a live panel, redrawn at most ten times a second from the
    caller's thread. On leaving, also by an exception, the last panel stays on the terminal. In a notebook it
    shows the newest report in one line. In all other cases each report is a line.

    Args:
      max_steps: Number of steps in all; None if it depends on the data.
      file: File to write to; None for stderr, or stdout in a notebook, which shows stderr as an error.
      clock: Returns the time in seconds since 1970.

    Example:
      >>> import sys
      >>> console = mw.observe.Console(max_steps=900, file=sys.stdout)
      >>> console(50, {"loss": 0.25})
      20...T... step=50/900 loss=0.25
    """

    def __init__(
        self,
        max_steps: int | None,
        *,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.time,
    ):
        # A notebook shows stderr as an error.
        is_cell = file is None and in_notebook()
        self._file = (sys.stdout if is_cell else sys.stderr) if file is None else file
        self._cell = NotebookLine() if is_cell else None
        self._newest = ""
        self._clock = clock
        self._progress = Progress(max_steps)
        self._live: Live | None = None
        self._drawn_at = self._report_drawn_at = -math.inf

    def __call__(self, step: int, values: Values, /) -> None:
        """Show a report: its step, and those of its values that are numbers."""
        current_time = self._clock()
        numbers_shown = _printable_numbers(values)
        self._progress.reach(step, current_time)
        self._progress.report(step, numbers_shown)
        if self._live is None:
            self._newest = self._line(step, numbers_shown, self._progress.seconds_left(current_time))
            if self._cell is None:
                self.say(self._newest)
            elif _is_time(self._report_drawn_at, current_time):
                self._report_drawn_at = current_time
                self._cell(self._newest)
        elif _is_time(self._report_drawn_at, current_time):
            self._report_drawn_at = current_time
            self._redraw(current_time)

    def first(self, step: int, values: Values, /) -> None:
        """Show the metrics of the first step alone. They are not a report."""
        self(step, values)

    def evaluated(self, step: int, scores: Values, /) -> None:
        """Print the scores of an evaluation above the panel. Without a panel, the report's line has them."""
        if self._live is not None:
            self.say(self._line(step, _printable_numbers(scores)))

    def expect(self, max_steps: int | None) -> None:
        """Set the number of steps in all; None if it depends on the data."""
        self._progress = Progress(max_steps)

    def on_step(self, tick: Tick) -> None:
        """Update the displayed step. Call this after every step, as the loop does with its `on_step`."""
        current_time = self._clock()
        self._progress.reach(tick.step, current_time)
        if _is_time(self._drawn_at, current_time):
            self._redraw(current_time)

    def say(self, message: "RenderableType") -> None:
        """Print a text, or anything that rich can render, above the panel or, without one, as lines."""
        if self._live is None and isinstance(message, str):
            print_line(message, self._file)
            return
        from meshwright.observe import _panel

        if self._live is not None:
            _panel.say(self._live.console, message)
        elif self._file is not None:
            print_line(_panel.text_of(message, self._file), self._file)

    def __enter__(self) -> Self:
        # Loading the module loads rich.
        from meshwright.observe import _panel

        self._live = None if self._cell or self._file is None else _panel.open_live(self, self._file)
        return self

    def __exit__(self, *_: object) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        if self._cell is not None and self._newest:
            self._cell(self._newest)

    def __rich__(self) -> "RenderableType":
        """The panel, for rich."""
        from meshwright.observe import _panel

        return _panel.panel(self._progress, self._progress.seconds_left(self._clock()))

    def _redraw(self, current_time: float) -> None:
        self._drawn_at = current_time
        if self._live is not None:
            self._live.refresh()

    def _line(self, step: int, values: Mapping[str, float], seconds_left: float | None = None) -> str:
        fields = {"step": self._progress.reached(step)}
        fields |= {name: number(value) for name, value in loss_first(values).items()}
        fields |= {} if seconds_left is None else {"left": duration(seconds_left)}
        return f"{local_time(self._clock())} {' '.join(f'{name}={text}' for name, text in fields.items())}"


def _printable_numbers(values: Values) -> dict[str, float]:
    return {printable(name, keep=""): value for name, value in numbers(values).items()}


def _is_time(drawn_at: float, current_time: float) -> bool:
    # Written such that a clock that is set back cannot stop the panel.
    return not 0 <= current_time - drawn_at < _REDRAW_SECONDS


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookLine:
    """A line of a cell's output that each call replaces."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, text: str) -> None:
        """Show `text` in place of the text before."""
        content = {"text/plain": text}
        if self._handle is None:
            display = sys.modules["IPython"].display
            self._handle = display.display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


T = TypeVar("T")


class Bar(Iterator[T]):
    """An iterator with a progress bar, which is shown on stderr if that is a terminal.

    Example:
      >>> bar = mw.observe._internal.Bar([0.5, 0.25], total=2, description="evaluating")
      >>> for loss in bar:
      ...     bar.set_postfix(loss=loss)
    """

    def __init__(self, items: Iterable[T], total: int | None, description: str, *, visible: bool = True):
        self._postfix: dict[str, float] = {}
        # In a pipe or a file, where nothing can be redrawn, the bar would print a line for each item.
        self._is_drawn = visible and sys.stderr is not None and sys.stderr.isatty()
        self._items = _drawn(items, total, description, self._postfix) if self._is_drawn else iter(items)

    def __next__(self) -> T:
        """Return the next item."""
        return next(self._items)

    def set_postfix(self, **values: Any) -> None:
        """Show numbers, such as the newest loss, beside the bar."""
        if self._is_drawn:
            self._postfix |= {name: float(value) for name, value in values.items()}


# A function, not a method, so that the generator ends as soon as the last reference to the bar is gone.
def _drawn(items: Iterable[T], total: int | None, description: str, postfix: dict[str, float]) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task(description, total=total)
        for item in items:
            yield item
            beside = "".join(f" {name} {number(value)}" for name, value in postfix.items())
            progress.update(task, advance=1, description=description + beside)
