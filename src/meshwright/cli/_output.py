"""What people read on stdout."""

import os
import sys

from meshwright.errors import printable


def show(text: str) -> None:
    """Print it, at once, without what a terminal obeys: names in it may be those of a stranger's file.

    Where a reader such as `head` has seen enough, nothing is printed any more.
    """
    try:
        print(printable(text), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
