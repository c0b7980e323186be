"""Thinning of thousands of points to a few hundred columns that keep every extreme value."""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

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
    found: list[list[Column]] = [[]]
    for steps, values in _groups(points, most_columns):
        finite = [value if abs(value) > _SMALLEST else 0.0 for value in values if is_finite(value)]
        if finite:
            found[-1].append(
                Column(statistics.fmean(steps), min(finite), statistics.fmean(finite), max(finite))
            )
        elif found[-1]:
            found.append([])
    return [stretch for stretch in found if stretch]


def not_finite(points: Series) -> list[int]:
    """Return the steps at which the value is NaN or infinite."""
    return [step for step, value in zip(points.steps, points.values, strict=True) if not is_finite(value)]


def _groups(points: Series, most: int) -> Iterator[tuple[Sequence[int], Sequence[float]]]:
    size = max(1, math.ceil(len(points.steps) / most))
    for i in range(0, len(points.steps), size):
        yield points.steps[i : i + size], points.values[i : i + size]
