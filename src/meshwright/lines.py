"""Lines that stay whole where several threads or processes write to one screen or file."""

from typing import TextIO


def print_line(text: str, out: TextIO | None) -> None:
    """Write a text and the end of its line at once, and flush.

    Without a buffer (`PYTHONUNBUFFERED=1`, usual in containers), `print` passes on a text and the end of its
    line one after the other, so that a line of another thread or process may come between them.

    Args:
      text: One or more lines, without the end of the last one.
      out: What it is written to, such as `sys.stderr`, which is None in a process without one.

    Example:
      >>> import sys
      >>> from meshwright.lines import print_line
      >>> print_line("step 100", sys.stdout)
      step 100
    """
    if out is not None:
        out.write(f"{text}\n")
        out.flush()
