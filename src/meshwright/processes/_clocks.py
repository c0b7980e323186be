"""A warning about clocks that differ between the processes of a run."""

import time
from collections.abc import Sequence

from meshwright.processes._exchange import Exchange

_MOST_SECONDS = 5
"""Larger differences are told. Nothing that is computed depends on the clocks."""


def clock_warning(exchange: Exchange) -> str:
    """Return a text about clocks that differ, or "" if none do. Collective.

    The times are read just after an exchange, so they differ by the network's delay, and by the clocks.
    """
    exchange.all_reduce("the clocks", None, lambda values: None)
    return describe_clocks(exchange.all_reduce("the clocks", time.time(), lambda times: times))


def describe_clocks(times: Sequence[float]) -> str:
    """Return a text about clocks that differ from that of process 0; "" if none do."""
    wrong = [number for number, seconds in enumerate(times) if abs(seconds - times[0]) > _MOST_SECONDS]
    if not wrong:
        return ""
    first = wrong[0]
    difference = times[first] - times[0]
    side = "ahead of" if difference > 0 else "behind"
    others = f", and {len(wrong) - 1} more differ" if len(wrong) > 1 else ""
    return (
        f"the clock of process {first} is {abs(difference):.0f} s {side} that of process 0{others}: times in "
        "logs and files do not compare. Set the clocks of the machines by NTP."
    )
