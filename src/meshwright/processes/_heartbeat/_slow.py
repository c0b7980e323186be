"""Which processes are slower than the others, by robust statistics over what each tells of itself.

In a step all processes wait for the slowest. So its time says nothing, and what counts is the time that each
spends on its own work between two steps: waiting for examples, and writing reports. Of devices their clocks
count: a device that computes slowly makes all others wait inside the step.
"""

import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshwright.base._internal import documented, milliseconds

INPUT_SECONDS, REPORT_SECONDS, STEP_SECONDS = "seconds/input", "seconds/report", "seconds/step"
"""What each process tells of a step, as a mean since it told before: the seconds in which it waited for
examples, in which it wrote reports, and all."""
_MEGAHERTZ = "machine/megahertz/device"
_LEAST_SHARE = 0.1
"""The least part of a step, or of the clock of the others, that is worth telling."""
_NUM_SPREADS = 3
_MANY = 8
_WINDOWS = 8
"""The number of readings in a row that must all say so."""
_OF_NORMAL = 1.4826
"""The standard deviation of a normal distribution, as a multiple of its median absolute deviation."""

Readings = Mapping[str, float]
"""What a process tells of itself, by name."""


@documented
@dataclass(frozen=True)
class Slow:
    """A process that is slower than the others."""

    process: int
    """The number of the process."""
    what: str
    """What it spends the time on: `input`, `report`, or `clock` for a device with a lower clock."""
    own: float
    """Its own figure: seconds of a step, or megahertz."""
    others: float
    """The median figure of the other processes."""
    step_seconds: float
    """The seconds of a whole step; 0 for a clock."""

    def __str__(self) -> str:
        if self.what == "clock":
            low = f"{self.own:.0f} MHz, where those of the others have {self.others:.0f}"
            return (
                f"process {self.process} is slower than the others: the clock of a device of it is at {low}"
            )
        doing = {"input": "waits for examples", "report": "writes reports"}[self.what]
        share = f"{100 * (self.own - self.others) / self.step_seconds:.0f} % of each step"
        times = f"{milliseconds(self.own)} a step, the others {milliseconds(self.others)}"
        return f"process {self.process} is slower than the others by {share}: it {doing} for {times}"


def slow_processes(readings: Sequence[Mapping[int, Readings]]) -> list[Slow]:
    """Return the processes that are slower than the others in each of some readings.

    A process is slow if even its lowest figure is above the highest median of the others, by a tenth of a
    step and by three times the spread of the others at least.
    """
    found = [*_slow_hosts(readings, "input", INPUT_SECONDS), *_slow_hosts(readings, "report", REPORT_SECONDS)]
    clocks = _columns(readings, _MEGAHERTZ)
    for process, own, (middle, spread) in _with_others(clocks):
        if middle - max(own) > max(_LEAST_SHARE * middle, _NUM_SPREADS * spread):
            found.append(Slow(process, "clock", statistics.median(own), middle, 0.0))
    return found


class SlowPeers:
    """Notices processes that are slower than the others, from what they tell again and again."""

    def __init__(self) -> None:
        self._readings: deque[Mapping[int, Readings]] = deque(maxlen=_WINDOWS)
        self._told: set[tuple[int, str]] = set()

    def add(self, readings: Mapping[int, Readings]) -> list[Slow]:
        """Return the processes that have become slow with these readings. Each is returned once."""
        timed = {process: each for process, each in readings.items() if STEP_SECONDS in each}
        before = self._readings[-1] if self._readings else {}
        if len(timed) < 2 or any(_times(each) == _times(before.get(p, {})) for p, each in timed.items()):
            return []  # not all of them have told of further steps
        self._readings.append(timed)
        if len(self._readings) < _WINDOWS:
            return []
        found = [
            each for each in slow_processes(self._readings) if (each.process, each.what) not in self._told
        ]
        self._told |= {(each.process, each.what) for each in found}
        return found


def _times(readings: Readings) -> list[float | None]:
    return [readings.get(name) for name in (INPUT_SECONDS, REPORT_SECONDS, STEP_SECONDS)]


def _slow_hosts(readings: Sequence[Mapping[int, Readings]], what: str, name: str) -> list[Slow]:
    own, steps = _columns(readings, name), _columns(readings, STEP_SECONDS)
    if not own or own.keys() != steps.keys():
        return []
    step = statistics.median(x for column in steps.values() for x in column)
    found = []
    for process, column, (middle, spread) in _with_others(own):
        if min(column) - middle > max(_LEAST_SHARE * step, _NUM_SPREADS * spread):
            found.append(Slow(process, what, statistics.median(column), middle, step))
    return found


def _columns(readings: Sequence[Mapping[int, Readings]], name: str) -> dict[int, list[float]]:
    """Return the figures of each process that has told them each time; nothing of fewer than two."""
    known = set.intersection(*({p for p, told in each.items() if name in told} for each in readings))
    return (
        {process: [each[process][name] for each in readings] for process in sorted(known)}
        if len(known) > 1
        else {}
    )


def _with_others(
    columns: Mapping[int, Sequence[float]],
) -> Iterator[tuple[int, Sequence[float], tuple[float, float]]]:
    """Yield each process with its figures, and with the median and the spread of the other processes.

    Of many processes one more does not move the median, so that it is computed once for all.
    """
    of_all = _median_and_spread(columns.values()) if len(columns) > _MANY else None
    for process, own in columns.items():
        others = (column for number, column in columns.items() if number != process)
        yield process, own, of_all or _median_and_spread(others)


def _median_and_spread(columns: Iterable[Sequence[float]]) -> tuple[float, float]:
    """Return the median over all processes and times, and the spread as a standard deviation."""
    values = [x for column in columns for x in column]
    middle = statistics.median(values)
    return middle, _OF_NORMAL * statistics.median(abs(x - middle) for x in values)
