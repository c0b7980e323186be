"""Lines that stay whole where several threads or processes write to one screen or file."""

import errno
import os
from typing import TextIO

_GONE = (errno.EPIPE, errno.EIO)
"""What a stream answers whose reader, such as `head` or a terminal, is gone."""


def print_line(text: str, out: TextIO | None) -> None:
    """Write a text and the end of its line at once, and flush.

    Without a buffer (`PYTHONUNBUFFERED=1`, usual in containers), `print` passes on a text and the end of its
    line one after the other, so that a line of another thread or process may come between them.

    Example:
      >>> import sys
      >>> from meshwright.base._lines import print_line
      >>> print_line("step 100", sys.stdout)
      step 100
    """
    if out is None or out.closed:
        return
    try:
        out.write(f"{text}\n")
        out.flush()
    except OSError as error:
        if error.errno not in _GONE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())  # or Python would fail when it ends
