"""Profiles of some steps, and where their time went."""

from meshwright.profile._measure import summarize
from meshwright.profile._summary import DeviceTimes, OpTimes, StepTimes, Summary
from meshwright.profile._trace import Trace, tracer
from meshwright.profile._xplane import find_profiles

__all__ = [
    "DeviceTimes",
    "OpTimes",
    "StepTimes",
    "Summary",
    "Trace",
    "find_profiles",
    "summarize",
    "tracer",
]
