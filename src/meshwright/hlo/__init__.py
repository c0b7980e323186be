"""Compiled programs, read from their HLO text: what they compute, move and exchange."""

from meshwright.hlo._collectives import Collective, collectives
from meshwright.hlo._files import save_hlo
from meshwright.hlo._kernels import Kernel, kernels, memory_traffic
from meshwright.hlo._program import collective_of

__all__ = [
    "Collective",
    "Kernel",
    "collective_of",
    "collectives",
    "kernels",
    "memory_traffic",
    "save_hlo",
]
