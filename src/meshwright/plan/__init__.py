"""What a step takes of hardware that is not there."""

from meshwright.plan._traced import TracedCosts, TracedMemory, traced_costs
from meshwright.plan._work import Work

__all__ = ["TracedCosts", "TracedMemory", "Work", "traced_costs"]
