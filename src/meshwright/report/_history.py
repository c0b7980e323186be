"""The reports of a run, sorted by number: curves, attempts, and the best value of each score."""

import itertools
import math
import re
from array import array
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass

from meshwright.base._internal import documented
from meshwright.checkpoints._internal import Mode

Report = Mapping[str, float]

_AT_START = "compile_seconds"
"""A number that only the first report of an attempt has. The others in that report are sizes of the state."""
_LARGEST = 1e100


@documented
@dataclass(frozen=True)
class Series:
    """The values of one reported number, in the order of their steps."""

    steps: MutableSequence[int]
    """Steps of the reports, ascending."""
    values: MutableSequence[float]
    """The value at each step."""

    @property
    def last(self) -> float:
        """The newest value."""
        return self.values[-1]


@documented
@dataclass(frozen=True)
class Attempt:
    """The part of a run from one start of the program to its end."""

    started: float
    """Time when training started, after compiling, in seconds since 1970."""
    seconds: float
    """Time from then to the last report."""
    first_step: int
    """Step that training started from."""
    last_step: int
    """Last step that was reported."""
    compile_seconds: float | None
    """Time that the step took to compile; None if it was not reported."""


@documented
@dataclass(frozen=True)
class Best:
    """The best value of a score."""

    step: int
    """Step of the value."""
    value: float
    """The best finite value; the newest of equal ones."""
    mode: Mode | None
    """`min` if lower values are better, `max` if higher ones are; None if that is not known."""


@documented
@dataclass(frozen=True)
class History:
    """The reports of a run as curves. They are split up while reading, so as not to keep 100,000 reports."""

    series: Mapping[str, Series]
    """Each number over the steps, except those that an attempt reports only at its start."""
    sizes: Mapping[str, float]
    """The numbers that the newest attempt reported at its start: sizes of the state, FLOPs of a step."""
    attempts: Sequence[Attempt]
    """The attempts, in the order of time."""
    step: int
    """The last step that was reported."""
    last: Report | None
    """The last report; None if there is none."""


def history_of(reports: Iterable[Report]) -> History:
    """Return the history of a run from its reports, given in the order in which they were made."""
    series: dict[str, Series] = {}
    ends: list[tuple[Report, Report]] = []
    seconds: list[float] = []
    sizes, step = {}, 0
    for report in reports:
        step = max(step, int(report["step"]))
        if _AT_START in report:
            sizes = {name: value for name, value in report.items() if name not in ("step", "time")}
        else:
            for name in report.keys() - {"step", "time"}:
                # Arrays take 16 bytes a value; lists of Python numbers would take several times as many.
                points = series.setdefault(name, Series(array("q"), array("d")))
                points.steps.append(int(report["step"]))
                points.values.append(report[name])
        if _AT_START in report or not ends:
            ends.append((report, report))
            seconds.append(0.0)
        seconds[-1] += _seconds_between(ends[-1][1], report)
        ends[-1] = ends[-1][0], report
    ordered = {name: _ordered(points) for name, points in sorted(series.items())}
    return History(ordered, sizes, list(map(_attempt, ends, seconds)), step, ends[-1][1] if ends else None)


def _ordered(points: Series) -> Series:
    """Return the points in the order of their steps; of several at the same step, only the newest."""
    # Only a run that went back to an earlier step reports a step twice.
    if all(a < b for a, b in itertools.pairwise(points.steps)):
        return points
    ordered = sorted(dict(zip(points.steps, points.values, strict=True)).items())
    return Series(array("q", [step for step, _ in ordered]), array("d", [value for _, value in ordered]))


def evaluators_of(series: Mapping[str, Series], settings: Mapping[str, str]) -> list[str]:
    """Return the names of a run's evaluations: those in its settings, and those that reported their time."""
    described = [match[1] for path in settings if (match := re.match(r"evaluations\.([^.]+)\.", path))]
    timed = [name.removesuffix("/seconds") for name in series if name.endswith("/seconds")]
    return sorted({*described, *timed})


def evaluated(name: str, evaluations: Sequence[str]) -> tuple[str, str] | None:
    """Split a score's name into evaluation and rest, `("test", "loss")`; None for numbers of training."""
    first, slash, rest = name.partition("/")
    return (first, rest) if slash and first in evaluations else None


def scores_of(series: Mapping[str, Series], evaluations: Sequence[str]) -> dict[str, Series]:
    """Return the numbers that evaluations reported, except their times."""
    parts = {name: evaluated(name, evaluations) for name in series}
    return {name: series[name] for name, part in parts.items() if part and part[1] != "seconds"}


def is_finite(value: float) -> bool:
    """Return whether a value is finite. Values far beyond the range of float32 count as infinite."""
    return abs(value) < _LARGEST  # False for NaN


def best_of(points: Series, mode: Mode | None) -> Best | None:
    """Return the best finite value, the newest of equal ones; None if `mode` is None or none is finite."""
    pairs = zip(points.values, points.steps, strict=True)
    finite = ((value, step) for value, step in pairs if is_finite(value))
    # Of equal values, the newest is the best.
    sign = 1 if mode == "max" else -1
    top = max(finite, key=lambda pair: (sign * pair[0], pair[1]), default=None)
    return None if mode is None or top is None else Best(top[1], top[0], mode)


def _seconds_between(first: Report, second: Report) -> float:
    """Return the time between two reports in seconds; 0 if the clock was set back in between."""
    seconds = second.get("time", math.nan) - first.get("time", math.nan)
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def _attempt(ends: tuple[Report, Report], seconds: float) -> Attempt:
    first, last = ends
    return Attempt(
        first.get("time", math.nan),
        seconds,
        int(first["step"]),
        int(last["step"]),
        first.get(_AT_START),
    )
