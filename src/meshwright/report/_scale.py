"""The scale of an axis, and the columns of a curve.

A curve of thousands of points is thinned to a few hundred columns, which keep every extreme value.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.base._internal import number
from meshwright.report._history import Series, is_finite

_SMALLEST = 1e-100
"""Smaller values are drawn as 0, so that axes need not handle the limits of float64."""


class Column(NamedTuple):
    """Neighbouring points that are drawn at the same position: their mean step and range of values."""

    step: float
    low: float
    mean: float
    high: float


def segments(points: Series, most_columns: int) -> list[list[Column]]:
    """Return the finite values as unbroken lists of columns, about `most_columns` in all.

    Each column keeps the lowest and the highest of its values, as M4 does (Jugel et al., VLDB 2014). A list
    ends where a column has no finite value.
    """
    stretches: list[list[Column]] = [[]]
    for steps, values in _groups(points, most_columns):
        finite = [value if abs(value) > _SMALLEST else 0.0 for value in values if is_finite(value)]
        if finite:
            stretches[-1].append(
                Column(statistics.fmean(steps), min(finite), statistics.fmean(finite), max(finite))
            )
        elif stretches[-1]:
            stretches.append([])
    return [stretch for stretch in stretches if stretch]


def not_finite(points: Series) -> list[int]:
    """Return the steps at which the value is NaN or infinite."""
    return [step for step, value in zip(points.steps, points.values, strict=True) if not is_finite(value)]


def _groups(points: Series, most: int) -> Iterator[tuple[Sequence[int], Sequence[float]]]:
    size = max(1, math.ceil(len(points.steps) / most))
    for i in range(0, len(points.steps), size):
        yield points.steps[i : i + size], points.values[i : i + size]


_MOST_TICKS = 5
_FEWEST_TO_CUT = 20
_STEEP = 3.0
"""A curve's beginning is cut off if it makes the range of values this many times larger."""


@dataclass(frozen=True)
class Scale:
    """A map from values to positions: `low` lies at `start`, `high` at `end`."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        low, high, position = (math.log(v) if self.is_log else v for v in (self.low, self.high, value))
        return self.start + (position - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return two to five round values to mark on the axis."""
        return _log_ticks(self.low, self.high) if self.is_log else _linear_ticks(self.low, self.high)


def scale_of(columns: Sequence[Column], start: float, end: float, *, from_zero: bool) -> tuple[Scale, bool]:
    """Return the scale for columns of values, and whether it cuts off their beginning.

    The scale is logarithmic if half of the values would lie in the lowest tenth of a linear one. A beginning
    that falls steeply is cut off, as it would leave little room for the rest.
    """
    low, high = _range(columns)
    # The median tells whether half of the values would lie in the lowest tenth of a linear scale.
    if low > 0 and not from_zero and high > 10 * statistics.median(column.mean for column in columns):
        return Scale(low / 1.1, high * 1.1, start, end, is_log=True), False
    later = _range(_after_the_first_tenth(columns))
    is_cut = len(columns) >= _FEWEST_TO_CUT and 0 < later[1] - later[0] < (high - low) / _STEEP
    if is_cut:
        low, high = later
    if from_zero or 0 < low < high / 4:
        low, high = min(low, 0.0), max(high, 0.0)
    # A constant curve has no range: it is drawn in the middle of one.
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = low - (abs(low) / 10 or 1.0), high + (abs(high) / 10 or 1.0)
    room = (high - low) / 25
    return Scale(low if low == 0 else low - room, high + room, start, end), is_cut


def _range(columns: Sequence[Column]) -> tuple[float, float]:
    return min((column.low for column in columns), default=0.0), max(
        (column.high for column in columns), default=1.0
    )


def _after_the_first_tenth(columns: Sequence[Column]) -> Sequence[Column]:
    begin = 0.1 * max((column.step for column in columns), default=0)
    return [column for column in columns if column.step >= begin]


def short(value: float) -> str:
    """Return a number for an axis: `0.25`, `30k`, `2.5M`."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size <= abs(value) < 1000 * size and abs(value) >= 10_000:
            return f"{number(value / size)}{letter}"
    return number(value)


def _linear_ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / _MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12 - math.floor(math.log10(step))) for i in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten; if these are fewer than three, also multiples of them."""
    for factors in ((1,), (1, 3), (1, 2, 5), range(1, 10)):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [factor * 10.0**power for power in powers for factor in factors]
        ticks = [value for value in ticks if low <= value <= high]
        if len(ticks) >= 3:
            break
    return ticks[:: math.ceil(len(ticks) / _MOST_TICKS)] if ticks else [low, high]
