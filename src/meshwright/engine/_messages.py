"""People are told a line: on the screen of one process, and in the log of each."""

import logging
from collections.abc import Callable

from meshwright import process
from meshwright.errors import printable
from meshwright.metrics import Console

log = logging.getLogger("meshwright")


def line_printer(
    console: Console, level: int = logging.INFO, *, is_shown: bool = True
) -> Callable[[str], None]:
    """Return a function that tells people: all processes' logs and, if `is_shown`, the screen of one."""

    def say(text: str) -> None:
        is_here = is_shown and process.is_lead()
        if log.hasHandlers() or not is_here:  # without any, Python would show it a second time
            log.log(level, text.strip())
        if is_here:
            console.say(printable(text))

    return say
