"""Compiled programs, read from their HLO text: FLOPs, memory traffic and collectives.

`_program` parses the text, `_executions` finds the instructions that run and how often, and the other files
count one thing each: products, kernels, collectives. `_files` and `_graph` write a program to files. May
import ground rooms only. To support a new HLO operation, change the file that counts it.
"""

from meshwright.hlo._collectives import Collective, axes_written, collectives
from meshwright.hlo._files import save_hlo
from meshwright.hlo._kernels import Kernel, kernels, memory_traffic
from meshwright.hlo._program import collective_of

__all__ = [
    "Collective",
    "Kernel",
    "axes_written",
    "collective_of",
    "collectives",
    "kernels",
    "memory_traffic",
    "save_hlo",
]
