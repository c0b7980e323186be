"""Profiles of some steps, and summaries of where their time went.

`_trace` takes a profile while a run goes on, `_xplane` reads its events and `_programs` the compiled programs
in it, `_scopes` groups operations by layer, `_measure` adds the times up, `_exchanges` those of collectives
by mesh axes, and `_summary` holds and prints
them. May import `hlo` and ground rooms. Add a figure to `Summary`, and compute it in `_measure`.
"""

from meshwright.profile._exchanges import exchange_seconds
from meshwright.profile._measure import summarize
from meshwright.profile._scopes import ScopeTimes
from meshwright.profile._summary import DeviceTimes, OpTimes, StepTimes, Summary
from meshwright.profile._trace import Trace, tracer
from meshwright.profile._xplane import find_profiles

__all__ = [
    "DeviceTimes",
    "OpTimes",
    "ScopeTimes",
    "StepTimes",
    "Summary",
    "Trace",
    "exchange_seconds",
    "find_profiles",
    "summarize",
    "tracer",
]
