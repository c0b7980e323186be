"""The names of `plan` that other packages use. They are loaded when they are first used."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.plan._changes import Change, Settings, changed, cheapest_changes, ranked, tried
    from meshwright.plan._estimate._traced import traced_costs
    from meshwright.plan._hardware import Hardware, hardware_here, hardware_named
    from meshwright.plan._plan import plan_step, planned, remedies, site_of
    from meshwright.plan._roofline import Rates, StepTime
    from meshwright.plan._runs import compile_ahead, run
    from meshwright.plan._search import search, with_finalists
    from meshwright.plan._site import Compiled, NotCompiledError, Site, compiled_from
    from meshwright.plan._topology import missing_compiler
    from meshwright.plan._values import Memory, Plan
    from meshwright.plan._words import described, described_changes, described_search
else:
    __getattr__, __dir__ = lazy_names(__name__)
