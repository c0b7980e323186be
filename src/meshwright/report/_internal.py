"""The names of `report` that other packages use. They are loaded when they are first used."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.report._comparison import compare, comparison_document, comparison_text
    from meshwright.report._comparison_page import write_comparison
    from meshwright.report._explain import PLAN, explain, planned_from
    from meshwright.report._ledger import LEDGER, Ledger, read_ledger, saving_advice
    from meshwright.report._page import PAGE, write_page
    from meshwright.report._records import SPIKES, WENT_BACK, spikes_in, times_back
    from meshwright.report._run import is_run, read_run
    from meshwright.report._summary import document, list_runs, runs_table, sort_runs, summary
else:
    __getattr__, __dir__ = lazy_names(__name__)
