"""What people read on stdout."""

import os
import sys


def show(text: str) -> None:
    """Print it, at once. Where a reader such as `head` has seen enough, nothing is printed any more."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
