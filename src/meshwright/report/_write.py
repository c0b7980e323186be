"""Writing of pages to files."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path

from meshwright.base._internal import put_file_at
from meshwright.errors import UsageError
from meshwright.report._comparison import compare
from meshwright.report._comparison_page import comparison_page
from meshwright.report._page import page
from meshwright.report._run import Run

PAGE = "report.html"
"""Name of a run's page in its directory."""


def write_page(run: Run, to: str | Path | None = None) -> str:
    """Write the HTML page of a run and return its path.

    Example:
      >>> mw.observe.jsonl("metrics.jsonl")(10, {"loss": 0.5})
      >>> mw.report._internal.write_page(mw.report.read_run("."), "page.html")
      'page.html'
    """
    return _write(page(run), to or run.directory / PAGE)


@dataclass(frozen=True)
class InlinePage:
    """A run's page, which a notebook shows in a cell."""

    html: str
    """The page."""
    height: int
    """Height of the frame in pixels."""

    def __repr__(self) -> str:
        return f"InlinePage({len(self.html)} characters, height={self.height})"

    def _repr_html_(self) -> str:
        text = escape(self.html)
        return f'<iframe srcdoc="{text}" width="100%" height="{self.height}" style="border: 0"></iframe>'


def inline_page(run: Run, height: int = 600) -> InlinePage:
    """Return the HTML page of a run as a value that a notebook shows, if it is the last of a cell.

    Args:
      run: The run, as `read_run` returns it.
      height: The height of the frame in pixels.

    Example:
      >>> mw.observe.jsonl("metrics.jsonl")(10, {"loss": 0.5})
      >>> mw.report.inline_page(mw.report.read_run("."))
      InlinePage(... characters, height=600)
    """
    return InlinePage(page(run), height)


def write_comparison(runs: Sequence[Run], to: str | Path) -> str:
    """Write an HTML page that compares two or more runs, and return its path."""
    return _write(comparison_page(compare(runs)), to)


def _write(text: str, to: str | Path) -> str:
    """Write a file atomically: a reader finds either the old page or the new one."""
    with put_file_at(to) as file:
        part = file.with_name(f".{file.name}.part")
        try:
            part.unlink(
                missing_ok=True
            )  # may be left by a killed process, or a link, which must not be followed
            with part.open("x", encoding="utf-8") as opened:
                opened.write(text)
            part.replace(file)
        except OSError as error:
            with suppress(OSError):  # leave no half page on a full disk
                part.unlink()
            raise UsageError(
                f"the page cannot be written to {to}: {error.strerror}.\n  Give another file with --to FILE."
            ) from None
    return str(to)
