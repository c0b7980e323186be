"""Printing of results on stdout."""

import io
import os
import sys
from functools import partial

from meshwright.base._internal import print_line
from meshwright.errors import printable


def show(text: str) -> None:
    """Print a text and flush it, without the control characters that a terminal would obey.

    Such characters may come from names in somebody else's file.
    """
    print_line(printable(text), sys.stdout)


def open_streams() -> None:
    """Let this process print whatever its streams are. Call it before it opens a file that stays open.

    In place of a stream that is closed comes one that goes nowhere: a file of the run would get its number,
    to which libraries in C write. Characters that stdout cannot encode, such as × in ASCII, are escaped, as
    Python does on stderr.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    nowhere = partial(open, os.devnull, "w", encoding="utf-8")
    sys.stdout, sys.stderr = sys.stdout or nowhere(), sys.stderr or nowhere()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
