"""The live panel. This and the progress bar are the only files here that load rich.

━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╸━━━━━━━━━━━━━━━━  620/900  0:00:01 left
loss 0.083 ▇▅▃▂▁▁▁ · accuracy 0.981 · held_out/accuracy 0.967 @600
41 300 examples/s · input wait 3 % · step 1.5 ms
"""

import sys
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from meshwright.base._internal import duration, number, sparkline
from meshwright.observe._progress import Progress, loss_first

_NARROW_SPACE = "\N{NARROW NO-BREAK SPACE}"
_PER_SECOND = "_per_second"


def rich_console(file: TextIO) -> Console:
    """Return a rich console that writes to `file`. It respects NO_COLOR and TERM."""
    return Console(file=file)


def open_live(panel: RenderableType, file: TextIO) -> Live | None:
    """Start to show `panel` on `file`; return None if the file cannot be redrawn in place."""
    console = rich_console(file)
    # FORCE_COLOR makes rich treat a pipe as a terminal, so ask the file, too.
    if not (file.isatty() and console.is_interactive) or console.options.ascii_only:
        return None
    live = Live(
        panel,
        console=console,
        # With `auto_refresh`, a thread redraws all the time.
        auto_refresh=False,
        # The program's own output goes above the panel, unless it goes into a pipe.
        redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        redirect_stderr=sys.stderr.isatty(),
    )
    live.start(refresh=True)
    return live


def text_of(message: RenderableType, file: TextIO) -> str:
    """Return a message as it is printed on `file`, without the end of its last line."""
    console = rich_console(file)
    with console.capture() as captured:
        say(console, message)
    return captured.get().removesuffix("\n")


def say(console: Console, message: RenderableType) -> None:
    """Print `message`, above the panel if there is one. Text is printed without markup."""
    console.print(message, markup=False, highlight=False, soft_wrap=isinstance(message, str))


def panel(progress: Progress, seconds_left: float | None) -> RenderableType:
    """Return the panel as an object that rich can render."""
    top = Table.grid(padding=(0, 2), expand=True)
    top.add_column(ratio=1)
    top.add_row(
        ProgressBar(total=progress.max_steps and max(1, progress.max_steps), completed=progress.step),
        progress.reached(progress.step),
        "" if seconds_left is None else f"{duration(seconds_left)} left",
    )
    rows = [" · ".join(part) for part in (_values(progress), _rates(progress))]
    return Group(top, *(Text(row) for row in rows if row))


def _values(progress: Progress) -> Iterator[str]:
    """Yield the newest metrics and scores. Those older than the last report are marked with their step."""
    current, _ = progress.newest.get("steps_per_second", (None, 0))
    for name, (step, value) in loss_first(progress.newest).items():
        if name == "input_wait" or name.endswith(_PER_SECOND):
            continue
        curve = f" {sparkline(progress.losses)}" if name == "loss" else ""
        age = "" if step == current or current is None else f" @{step}"
        yield f"{name} {_number(value)}{curve}{age}"


def _rates(progress: Progress) -> Iterator[str]:
    newest = {name: value for name, (_, value) in progress.newest.items()}
    steps_per_second = newest.pop(f"steps{_PER_SECOND}", None)
    for name, value in newest.items():
        if name.endswith(_PER_SECOND):
            yield f"{_number(value)} {name.removesuffix(_PER_SECOND)}/s"
    if "input_wait" in newest:
        yield f"input wait {newest['input_wait']:.0%}".replace("%", f"{_NARROW_SPACE}%")
    if steps_per_second:
        yield f"step {_number(1000 / steps_per_second)} ms"


def _number(value: float) -> str:
    return number(value, thousands=_NARROW_SPACE)
