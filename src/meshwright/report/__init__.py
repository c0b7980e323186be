"""Pages from the files of runs alone: a page for each run, a comparison, a list."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.report._run import read_run
    from meshwright.report._write import inline_page
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["inline_page", "read_run"]
