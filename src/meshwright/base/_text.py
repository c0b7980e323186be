"""Text for screens: tables that fit the width of the terminal, and lines that stay whole.

A line stays whole where several threads or processes write to one screen or file.
"""

import errno
import os
import shutil
import textwrap
from collections.abc import Collection, Sequence
from typing import TextIO

_GAP = "  "
_NARROWEST = 8
"""Smallest width to which a column is shortened: anything shorter would say nothing."""


def screen_width() -> int | None:
    """Return the width of the terminal, or the value of the variable COLUMNS; None for a pipe or a file.

    Other programs may read pipes and files, so text for them is not cut.
    """
    return shutil.get_terminal_size((0, 0)).columns or None


def aligned(
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    width: int | None = None,
    indent: str = "",
) -> list[str]:
    """Return a line for each row of cells, with aligned columns."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if width is not None:
        widths = _narrowed(widths, right, width - len(indent) - len(_GAP) * (len(widths) - 1))
    return [indent + _line(row, widths, right).rstrip() for row in rows]


def shortened(text: str, width: int) -> str:
    """Return a text of at most `width` characters, cut in the middle if necessary: `params/…/kernel`."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def wrapped(text: str, *, width: int | None, indent: str = "") -> str:
    """Return a text whose lines have at most `width` characters.

    A word is never cut, as it may be a path.
    """
    if width is None:
        return text
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(line if len(line) <= width else wrapper.fill(line) for line in text.splitlines())


def _narrowed(widths: Sequence[int], fixed: Collection[int], most: int) -> list[int]:
    """Narrow the widest column, again and again, until all fit or none can be narrowed further."""
    narrowed = list(widths)
    free = [i for i in range(len(narrowed)) if i not in fixed]
    while sum(narrowed) > most and free:
        widest = max(free, key=narrowed.__getitem__)
        if narrowed[widest] <= _NARROWEST:
            break
        narrowed[widest] -= 1
    return narrowed


def _line(row: Sequence[str], widths: Sequence[int], right: Collection[int]) -> str:
    cells = (shortened(cell, width) for cell, width in zip(row, widths, strict=True))
    return _GAP.join(
        cell.rjust(width) if i in right else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )


_READER_ENDED = (errno.EPIPE, errno.EIO)
"""The errors of a stream whose reader, such as `head` or a terminal, has ended."""


def print_line(text: str, out: TextIO | None) -> None:
    """Write a text and the end of its line at once, and flush.

    Without a buffer (`PYTHONUNBUFFERED=1`, usual in containers), `print` passes on a text and the end of its
    line one after the other, so that a line of another thread or process may come between them.
    """
    if out is None or out.closed:
        return
    try:
        out.write(f"{text}\n")
        out.flush()
    except OSError as error:
        if error.errno not in _READER_ENDED:
            raise
        # Without this, Python would fail when it flushes the stream at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
