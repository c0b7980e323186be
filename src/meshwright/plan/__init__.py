"""What a step takes of hardware that is not there: memory, network, time; and what it could take instead.

`Site` is an experiment on some hardware; `_estimate` reads its traced step, `_topology` compiles it,
`_roofline` turns both into seconds, `_changes` tries other settings, `_words` prints. May import
`experiment` and all below. Add a chip to `_chips`; how a primitive's dimensions go together is told in
`program`.
"""

from meshwright.plan._changes import Change, cheapest_changes, ranked, search, tried
from meshwright.plan._estimate import TracedCosts, TracedMemory, Work, traced_costs
from meshwright.plan._hardware import Hardware, hardware_named
from meshwright.plan._plan import plan, planned, site_of
from meshwright.plan._roofline import Rates, StepTime
from meshwright.plan._site import Compiled, NotCompiledError, Site, compiled_from
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
    "Site",
    "StepTime",
    "TracedCosts",
    "TracedMemory",
    "Work",
    "cheapest_changes",
    "compiled_from",
    "described",
    "described_changes",
    "described_search",
    "hardware_named",
    "plan",
    "planned",
    "ranked",
    "search",
    "seconds",
    "site_of",
    "traced_costs",
    "tried",
]
