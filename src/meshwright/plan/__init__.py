"""Memory, network traffic and time of an experiment's training step on hardware that you do not have.

`Site` pairs an experiment with hardware. `_estimate` reads the traced step, `_topology` describes devices
to the hardware's compiler, `_roofline` turns both into seconds, `_changes` and `_search` try other settings
with the traces of `_traces`, `_words` prints. May import `experiment` and all below. Add a chip in `_chips`;
add how an operation relates the dimensions of its operands and results in the room `program`.
"""

from meshwright.plan._changes import Change, Settings, changed, cheapest_changes, ranked, tried
from meshwright.plan._choice import choose
from meshwright.plan._estimate import TracedCosts, TracedMemory, Work, traced_costs
from meshwright.plan._finalists import with_finalists
from meshwright.plan._hardware import Hardware, hardware_here, hardware_named
from meshwright.plan._plan import plan, planned, site_of
from meshwright.plan._remedies import remedies
from meshwright.plan._roofline import Rates, StepTime, published_rates
from meshwright.plan._search import search
from meshwright.plan._site import Compiled, NotCompiledError, Site, compiled_from
from meshwright.plan._topology import missing_compiler
from meshwright.plan._values import CheckpointCost, Exchange, Memory, Plan
from meshwright.plan._words import described, described_changes, described_search, seconds

__all__ = [
    "Change",
    "CheckpointCost",
    "Compiled",
    "Exchange",
    "Hardware",
    "Memory",
    "NotCompiledError",
    "Plan",
    "Rates",
    "Settings",
    "Site",
    "StepTime",
    "TracedCosts",
    "TracedMemory",
    "Work",
    "changed",
    "cheapest_changes",
    "choose",
    "compiled_from",
    "described",
    "described_changes",
    "described_search",
    "hardware_here",
    "hardware_named",
    "missing_compiler",
    "plan",
    "planned",
    "published_rates",
    "ranked",
    "remedies",
    "search",
    "seconds",
    "site_of",
    "traced_costs",
    "tried",
    "with_finalists",
]
