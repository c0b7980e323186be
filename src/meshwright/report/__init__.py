"""Pages from the files of runs alone: a page for each run, a comparison, a list."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.report._page import inline_page
    from meshwright.report._run import read_run
    from meshwright.report._summary import list_runs, sort_runs
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["inline_page", "list_runs", "read_run", "sort_runs"]
