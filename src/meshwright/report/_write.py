"""Pages as files."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from meshwright.errors import UsageError
from meshwright.report._comparison import compare
from meshwright.report._comparison_page import comparison_page
from meshwright.report._page import page
from meshwright.report._run import Run
from meshwright.storage import put_file_at

PAGE = "report.html"
"""The name of a run's page, in its directory."""


def write_page(run: Run, to: str | Path | None = None) -> str:
    """Write the page of a run, by default as `report.html` in its directory, and return where it is.

    Args:
      to: a file, or an address for it.

    Raises:
      UsageError: it cannot be written there.
    """
    return _write(page(run), to or run.directory / PAGE)


def write_comparison(runs: Sequence[Run], to: str | Path) -> str:
    """Write a page of two or more runs to a file, or to an address, and return where it is.

    Raises:
      UsageError: it cannot be written there, or they are fewer than two.
    """
    return _write(comparison_page(compare(runs)), to)


def _write(text: str, to: str | Path) -> str:
    """Write a file at once: who looks at it meanwhile finds the old or the new."""
    with put_file_at(to) as file:
        part = file.with_name(f".{file.name}.part")
        try:
            part.unlink(missing_ok=True)  # a killed process's; or somebody's link, which would be followed
            with part.open("x", encoding="utf-8") as opened:
                opened.write(text)
            part.replace(file)
        except OSError as error:
            with suppress(OSError):  # a full disk is no place for half a page
                part.unlink()
            raise UsageError(
                f"the page cannot be written to {to}: {error.strerror}.\n  Give another place with --to FILE."
            ) from None
    return str(to)
