"""Runs, as their files tell of them: a page for each, several side by side, and a list of all.

Everything is read from run directories; of a run that goes on, was killed or lost files, as much as is
there. `_run` and `_history` read, `_page`, `_comparison_page` and `_summary` say it, `_chart` and
`_tables` draw. May import the rooms up to `predict`, and no run itself. Add a section to `_page`, from
what `Run` has.
"""

from meshwright.report._back import WENT_BACK, Back, times_back
from meshwright.report._comparison import Comparison, compare, comparison_document, comparison_text
from meshwright.report._history import Best, Series
from meshwright.report._run import Run, is_run, read_run
from meshwright.report._summary import document, list_runs, runs_table, summary
from meshwright.report._write import PAGE, write_comparison, write_page

__all__ = [
    "PAGE",
    "WENT_BACK",
    "Back",
    "Best",
    "Comparison",
    "Run",
    "Series",
    "compare",
    "comparison_document",
    "comparison_text",
    "document",
    "is_run",
    "list_runs",
    "read_run",
    "runs_table",
    "summary",
    "times_back",
    "write_comparison",
    "write_page",
]
