"""What a run's time and memory go to."""

from meshwright.profiling._hlo import save_hlo
from meshwright.profiling._measure import collective_of, summarize
from meshwright.profiling._summary import DeviceTimes, OpTimes, StepTimes, Summary
from meshwright.profiling._trace import Trace, tracer
from meshwright.profiling._xplane import find_profiles

__all__ = [
    "DeviceTimes",
    "OpTimes",
    "StepTimes",
    "Summary",
    "Trace",
    "collective_of",
    "find_profiles",
    "save_hlo",
    "summarize",
    "tracer",
]
