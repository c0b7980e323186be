"""What a run's time and memory go to."""

from meshwright.profiling._collectives import Collective, collectives
from meshwright.profiling._flops import Flops, Product, count_flops, flops
from meshwright.profiling._hlo import save_hlo
from meshwright.profiling._kernels import Kernel, kernels, memory_traffic
from meshwright.profiling._measure import collective_of, summarize
from meshwright.profiling._peaks import peak_flops
from meshwright.profiling._products import product_flops
from meshwright.profiling._summary import DeviceTimes, OpTimes, StepTimes, Summary
from meshwright.profiling._trace import Trace, tracer
from meshwright.profiling._utilisation import (
    utilisation,
    utilisation_on,
    with_known_utilisation,
    with_utilisation,
)
from meshwright.profiling._xplane import find_profiles

__all__ = [
    "Collective",
    "DeviceTimes",
    "Flops",
    "Kernel",
    "OpTimes",
    "Product",
    "StepTimes",
    "Summary",
    "Trace",
    "collective_of",
    "collectives",
    "count_flops",
    "find_profiles",
    "flops",
    "kernels",
    "memory_traffic",
    "peak_flops",
    "product_flops",
    "save_hlo",
    "summarize",
    "tracer",
    "utilisation",
    "utilisation_on",
    "with_known_utilisation",
    "with_utilisation",
]
