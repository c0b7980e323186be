"""The processes that are slower than the others, by robust statistics over the readings of each.

In a step all processes wait for the slowest, so the time of steps is the same for all. The time that each
spends on its own work between two steps differs: waiting for examples, and writing reports. Of devices
their clocks are compared: a device that computes slowly makes all others wait inside the step.
"""

import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshwright.base._internal import documented, milliseconds

INPUT_SECONDS, REPORT_SECONDS, STEP_SECONDS = "seconds/input", "seconds/report", "seconds/step"
"""Readings of each process, as means of a step since its last entry: the seconds in which it waited for
examples, in which it wrote reports, and all."""
_MEGAHERTZ = "machine/megahertz/device"
_LEAST_SHARE = 0.1
"""The least part of a step, or of the clock of the others, that is reported."""
_NUM_SPREADS = 3
_MANY = 8
_WINDOWS = 8
"""The number of readings in a row in all of which a process must be slow."""
_OF_NORMAL = 1.4826
"""The standard deviation of a normal distribution, as a multiple of its median absolute deviation."""

Readings = Mapping[str, float]
"""Readings of a process, by name."""


@documented
@dataclass(frozen=True)
class Slow:
    """A process that is slower than the others."""

    process: int
    """The number of the process."""
    cause: str
    """The cause: `input`, `report`, or `clock` for a device with a lower clock."""
    own: float
    """The figure of the process: seconds of a step, or megahertz."""
    others: float
    """The median figure of the other processes."""
    step_seconds: float
    """The seconds of a whole step; 0 for a clock."""

    def __str__(self) -> str:
        if self.cause == "clock":
            low = f"{self.own:.0f} MHz, where those of the others have {self.others:.0f}"
            return (
                f"process {self.process} is slower than the others: the clock of a device of it is at {low}"
            )
        doing = {"input": "waits for examples", "report": "writes reports"}[self.cause]
        share = f"{100 * (self.own - self.others) / self.step_seconds:.0f} % of each step"
        times = f"{milliseconds(self.own)} a step, the others {milliseconds(self.others)}"
        return f"process {self.process} is slower than the others by {share}: it {doing} for {times}"


def slow_processes(readings: Sequence[Mapping[int, Readings]]) -> list[Slow]:
    """Return the processes that are slower than the others in each of some readings.

    A process is slow if even its lowest figure is above the highest median of the others, by a tenth of a
    step and by three times the spread of the others at least.
    """
    slow = [*_slow_hosts(readings, "input", INPUT_SECONDS), *_slow_hosts(readings, "report", REPORT_SECONDS)]
    clocks = _columns(readings, _MEGAHERTZ)
    for process, own, (middle, spread) in _with_others(clocks):
        if middle - max(own) > max(_LEAST_SHARE * middle, _NUM_SPREADS * spread):
            slow.append(Slow(process, "clock", statistics.median(own), middle, 0.0))
    return slow


class SlowPeers:
    """Notices processes that are slower than the others, from their readings over time."""

    def __init__(self) -> None:
        self._readings: deque[Mapping[int, Readings]] = deque(maxlen=_WINDOWS)
        self._reported: set[tuple[int, str]] = set()

    def add(self, readings: Mapping[int, Readings]) -> list[Slow]:
        """Return the processes that have become slow with these readings. Each is returned once."""
        timed = {process: figures for process, figures in readings.items() if STEP_SECONDS in figures}
        previous = self._readings[-1] if self._readings else {}
        if len(timed) < 2 or any(
            _times(figures) == _times(previous.get(p, {})) for p, figures in timed.items()
        ):
            return []  # some processes have no new steps
        self._readings.append(timed)
        if len(self._readings) < _WINDOWS:
            return []
        newly_slow = [x for x in slow_processes(self._readings) if (x.process, x.cause) not in self._reported]
        self._reported |= {(peer.process, peer.cause) for peer in newly_slow}
        return newly_slow


def _times(readings: Readings) -> list[float | None]:
    return [readings.get(name) for name in (INPUT_SECONDS, REPORT_SECONDS, STEP_SECONDS)]


def _slow_hosts(readings: Sequence[Mapping[int, Readings]], cause: str, name: str) -> list[Slow]:
    own, steps = _columns(readings, name), _columns(readings, STEP_SECONDS)
    if not own or own.keys() != steps.keys():
        return []
    step = statistics.median(x for column in steps.values() for x in column)
    slow = []
    for process, column, (middle, spread) in _with_others(own):
        if min(column) - middle > max(_LEAST_SHARE * step, _NUM_SPREADS * spread):
            slow.append(Slow(process, cause, statistics.median(column), middle, step))
    return slow


def _columns(readings: Sequence[Mapping[int, Readings]], name: str) -> dict[int, list[float]]:
    """Return the figures of each process that has one in each reading; none of fewer than two processes."""
    processes = set.intersection(
        *({p for p, figures in reading.items() if name in figures} for reading in readings)
    )
    return (
        {process: [reading[process][name] for reading in readings] for process in sorted(processes)}
        if len(processes) > 1
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
