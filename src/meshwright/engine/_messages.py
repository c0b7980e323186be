"""Lines of text for the user: on the screen of process 0, and in the log of each process."""

import logging
from collections.abc import Callable

from meshwright.errors import printable
from meshwright.observe._internal import Console
from meshwright.processes import _internal as processes

log = logging.getLogger("meshwright")


def line_printer(
    console: Console, level: int = logging.INFO, *, is_shown: bool = True
) -> Callable[[str], None]:
    """Return a function that shows a line to the user."""

    def say(text: str) -> None:
        shows = is_shown and processes.is_lead()
        if log.hasHandlers() or not shows:  # without a handler, Python would print the line a second time
            log.log(level, text.strip())
        if shows:
            console.say(printable(text))

    return say
