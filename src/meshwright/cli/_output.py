"""Printing of results on stdout."""

import os
import sys

from meshwright.errors import printable


def show(text: str) -> None:
    """Print a text and flush it, without the control characters that a terminal would obey.

    Such characters may come from names in somebody else's file. If the reader, such as `head`, has closed
    the pipe, this text and all later ones are dropped.
    """
    try:
        print(printable(text), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
