"""Reports about runs: an HTML page for one run, a page that compares several, and a list of all.

Everything is read from the files of run directories. Runs that are still going, were killed or lost files
are reported as far as their files allow. `_run` and `_history` read the files; `_page`, `_comparison_page`
and `_summary` write the reports; `_varied` finds the settings in which runs differ, `_sorting` the best runs;
`_chart` and `_tables` draw; `_explain` says where
the time goes. This room may import the rooms up to `predict`. To add a section to the page, add
it to `_page._sections`, from the values of `Run`.
"""

from meshwright.report._back import WENT_BACK, Back, times_back
from meshwright.report._comparison import Comparison, compare, comparison_document, comparison_text
from meshwright.report._explain import PLAN, Explanation, Planned, explain, planned_from
from meshwright.report._history import Best, Series
from meshwright.report._ledger import LEDGER, Ledger, read_ledger, saving_told
from meshwright.report._run import Run, is_run, read_run
from meshwright.report._sorting import sort_runs
from meshwright.report._spikes import SPIKES, SpikeSeen, spikes_in
from meshwright.report._summary import document, list_runs, runs_table, summary
from meshwright.report._write import PAGE, InlinePage, inline_page, write_comparison, write_page

__all__ = [
    "LEDGER",
    "PAGE",
    "PLAN",
    "SPIKES",
    "WENT_BACK",
    "Back",
    "Best",
    "Comparison",
    "Explanation",
    "InlinePage",
    "Ledger",
    "Planned",
    "Run",
    "Series",
    "SpikeSeen",
    "compare",
    "comparison_document",
    "comparison_text",
    "document",
    "explain",
    "inline_page",
    "is_run",
    "list_runs",
    "planned_from",
    "read_ledger",
    "read_run",
    "runs_table",
    "saving_told",
    "sort_runs",
    "spikes_in",
    "summary",
    "times_back",
    "write_comparison",
    "write_page",
]
