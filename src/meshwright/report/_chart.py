"""A chart of curves over steps, as SVG without scripts. Its curves are labelled, its numbers are text.

A curve with many points is thinned to columns: a line through their means, over a band from their lowest to
their highest values. Values that are not finite are drawn as crosses at the upper edge. The name and newest
value are at the end of each curve, moved apart so that none covers another.
"""

import bisect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from meshwright.base._internal import number, shortened
from meshwright.report._history import Best, Series
from meshwright.report._html import Html, breakable, tag
from meshwright.report._scale import Column, Scale, not_finite, scale_of, segments, short

WIDTH, HEIGHT = 380.0, 212.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 304.0, 10.0, 186.0
"""Edges of the plot in the figure. The labels are to its right, the steps below it."""
_MOST_COLUMNS = 150
_FEWEST_COLUMNS = 40
_MOST_DOTS = 24
# Each reading is an element of the page, also those of curves with thousands of points.
_MOST_READINGS = 90
_MOST_CROSSES = 40
_MOST_WITH_BANDS = 3
_LONGEST = 11
MOST_LABELS = 8
"""Largest number of curves with a name at their end. Charts of more runs have no readings of values."""


class Label(NamedTuple):
    """The name and newest value at the end of a curve."""

    name: str
    value: str
    tone: int
    y: float
    x: float
    group: str = ""


def end_labels(labels: Sequence[Label], bottom: float) -> Iterator[Html]:
    """Yield the labels, moved apart: in two lines, name and value, for a few curves; in one line for many."""
    height = 25.0 if len(labels) <= 3 else 12.5
    visible = sorted(labels[:MOST_LABELS], key=lambda label: label.y)
    for label, y in zip(visible, _apart([label.y for label in visible], height, bottom), strict=True):
        yield _two_lines(label, y) if height > 20 and label.name else _one_line(label, y)
    # If there are many runs, a text above the charts names them.
    if len(labels) > len(visible) and not labels[0].group:
        text = f"and {len(labels) - len(visible)} more"
        yield tag("text", text, x=labels[0].x, y=bottom + 2, class_="axis faint")


def _apart(positions: Sequence[float], height: float, bottom: float) -> list[float]:
    """Return ascending places, each at least `height` below the one before, none below `bottom`."""
    moved: list[float] = []
    for position in positions:
        moved.append(max(position, moved[-1] + height) if moved else position)
    # From below, labels are moved up again, so that none is under the plot.
    limit = bottom
    for i in reversed(range(len(moved))):
        moved[i] = min(moved[i], limit)
        limit = moved[i] - height
    return moved


def _two_lines(label: Label, y: float) -> Html:
    name = tag("tspan", _cut(label.name), x=label.x, class_="name")
    value = tag("tspan", label.value, x=label.x, dy="1.15em", class_="value")
    whole = tag("title", label.name) if len(label.name) > _LONGEST else None
    return tag("text", whole, name, value, y=round(y - 1, 1), class_=_class("label", label))


def _one_line(label: Label, y: float) -> Html:
    text = _cut(label.name) if label.name else label.value
    whole = tag("title", f"{label.name} {label.value}".strip())
    return tag(
        "text",
        whole,
        text,
        x=label.x,
        y=round(y + 4, 1),
        class_=_class("label", label),
    )


def num_scaled(num_runs: int) -> int:
    """Return how many of the runs, the best first, set the scale: the worse half may reach to any value."""
    return max(MOST_LABELS, num_runs // 2)


def _cut(name: str) -> str:
    return shortened(name, _LONGEST)


@dataclass(frozen=True)
class Curve:
    """A curve of a chart."""

    label: str
    """Name at the end of the curve; may be "" if the chart has only one curve."""
    points: Series
    tone: int
    """Number of its colour on the page."""
    best: Best | None = None
    """Best value, marked with a ring; None if it is not known."""
    group: str = ""
    """CSS class of all curves of a run, on a page with several runs."""


def chart(
    title: str,
    curves: Sequence[Curve],
    *,
    last_step: int,
    restarts: Sequence[int] = (),
    from_zero: bool = False,
    note: str = "",
) -> Html:
    """Return a figure of the curves over the steps 0 to `last_step`."""
    has_many = len(curves) > MOST_LABELS and bool(curves[0].group)
    most = max(_FEWEST_COLUMNS, _MOST_COLUMNS * MOST_LABELS // max(MOST_LABELS, len(curves)))
    drawn = [segments(curve.points, most) for curve in curves]
    x = Scale(0, max(1, last_step), LEFT, RIGHT)
    scaled = drawn[: num_scaled(len(drawn))] if has_many else drawn
    all_columns = [
        column for columns_of_curve in scaled for stretch in columns_of_curve for column in stretch
    ]
    y, is_cut = scale_of(all_columns, BOTTOM, TOP, from_zero=from_zero)
    pairs = list(zip(curves, drawn, strict=True))
    # The curves of the best runs are drawn last, over the others.
    below = pairs[::-1] if has_many else pairs
    has_bands = len(curves) <= _MOST_WITH_BANDS
    picture = tag(
        "svg",
        tag("title", title),
        tag("desc", "; ".join(map(_description, curves[:MOST_LABELS]))),
        *_axes(x, y),
        *(_restart(x(step), step) for step in restarts if step <= last_step),
        _window(
            *(_curve(curve, columns_of_curve, x, y, has_bands=has_bands) for curve, columns_of_curve in below)
        ),
        *(_crosses(curve, x) for curve in curves),
        *end_labels([_label(curve, columns_of_curve, y) for curve, columns_of_curve in pairs], BOTTOM - 6),
        *(() if has_many else _readings(curves, x)),
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
    )
    begins = f"starts at {number(curves[0].points.values[0])}" if is_cut else ""
    return tag("figure", _caption(title, note, begins, "log scale" if y.is_log else ""), picture)


def _caption(title: str, *notes: str) -> Html:
    text = " · ".join(filter(None, notes))
    return tag("figcaption", tag("b", breakable(title)), tag("span", text) if text else None)


def _axes(x: Scale, y: Scale) -> Iterator[Html]:
    for value in y.ticks():
        y_position = y(value)
        yield tag("line", x1=LEFT, x2=RIGHT, y1=_r(y_position), y2=_r(y_position), class_="grid")
        yield tag("text", short(value), x=LEFT - 6, y=_r(y_position + 3.5), class_="axis", text_anchor="end")
    # There are no fractions of steps.
    ticks = [value for value in x.ticks() if value == int(value)]
    for value in ticks:
        yield tag("text", short(value), x=_r(x(value)), y=BOTTOM + 16, class_="axis", text_anchor="middle")
    yield tag("text", "step", x=LEFT - 6, y=BOTTOM + 16, class_="axis faint", text_anchor="end")


def _restart(x_position: float, step: int) -> Html:
    title = tag("title", f"continued from step {step}")
    return tag("line", title, x1=_r(x_position), x2=_r(x_position), y1=TOP, y2=BOTTOM, class_="restart")


def _window(*curves: Html) -> Html:
    """Return the curves, clipped at the plot's upper and lower edges, with room for rings at its sides."""
    width, height = RIGHT - LEFT + 12, BOTTOM - TOP + 2
    area = {"x": LEFT - 6, "y": TOP - 1, "width": width, "height": height}
    return tag("svg", *curves, **area, viewBox=f"{LEFT - 6} {TOP - 1} {width} {height}")


def _curve(
    curve: Curve, stretches: Sequence[Sequence[Column]], x: Scale, y: Scale, *, has_bands: bool
) -> Html:
    is_thinned = any(column.low < column.high for stretch in stretches for column in stretch)
    best = curve.best
    return tag(
        "g",
        tag("title", f"{curve.label} {number(curve.points.last)}".strip()),
        *(_band(stretch, x, y) for stretch in stretches if is_thinned and has_bands),
        *(_line(stretch, x, y) for stretch in stretches),
        *(_dots(stretches, x, y) if len(curve.points.steps) <= _MOST_DOTS else ()),
        tag("circle", cx=_r(x(best.step)), cy=_r(y(best.value)), r=4.5, class_="best") if best else None,
        class_=_class("curve", curve),
    )


def _line(stretch: Sequence[Column], x: Scale, y: Scale) -> Html:
    points = [f"{_r(x(column.step))} {_r(y(column.mean))}" for column in stretch]
    return tag("path", d="M" + "L".join(points), class_="line")


def _band(stretch: Sequence[Column], x: Scale, y: Scale) -> Html:
    upper = [f"{_r(x(column.step))} {_r(y(column.high))}" for column in stretch]
    lower = [f"{_r(x(column.step))} {_r(y(column.low))}" for column in reversed(stretch)]
    return tag("path", d="M" + "L".join(upper + lower) + "Z", class_="band")


def _dots(stretches: Sequence[Sequence[Column]], x: Scale, y: Scale) -> Iterator[Html]:
    for column in (column for stretch in stretches for column in stretch):
        yield tag("circle", cx=_r(x(column.step)), cy=_r(y(column.mean)), r=1.8, class_="dot")


def _crosses(curve: Curve, x: Scale) -> Html | None:
    steps = not_finite(curve.points)
    positions = [(_r(x(step)), step) for step in steps[:: math.ceil(len(steps) / _MOST_CROSSES) or 1]]
    crosses = (
        tag(
            "path",
            tag("title", f"not finite at step {step}"),
            d=f"M{x_position - 3:g} {TOP - 4}l6 6m0 -6l-6 6",
        )
        for x_position, step in positions
    )
    return tag("g", *crosses, class_=f"cross {curve.group}".rstrip()) if steps else None


def _label(curve: Curve, stretches: Sequence[Sequence[Column]], y: Scale) -> Label:
    position = min(max(y(stretches[-1][-1].mean), TOP), BOTTOM) if stretches else TOP
    return Label(curve.label, number(curve.points.last), curve.tone, position, RIGHT + 8, curve.group)


def _readings(curves: Sequence[Curve], x: Scale) -> Iterator[Html]:
    """Yield invisible bars that show, under the mouse pointer, the values at their steps."""
    steps = sorted({step for curve in curves for step in curve.points.steps})
    size = math.ceil(len(steps) / _MOST_READINGS)
    ends = [*steps[size - 1 : -1 : size], steps[-1]]
    positions = [x(step) for step in ends]
    edges = [LEFT, *((a + b) / 2 for a, b in pairwise(positions)), RIGHT]
    for step, (start, end) in zip(ends, pairwise(edges), strict=True):
        title = tag("title", "\n".join([f"step {step}", *(_reading(curve, step) for curve in curves)]))
        yield tag(
            "rect", title, x=_r(start), width=_r(end - start), y=TOP, height=BOTTOM - TOP, class_="read"
        )


def _reading(curve: Curve, step: int) -> str:
    i = bisect.bisect_right(curve.points.steps, step) - 1
    value = number(curve.points.values[i]) if i >= 0 else "–"
    return f"{curve.label} {value}".strip()


def _description(curve: Curve) -> str:
    steps, values = curve.points.steps, curve.points.values
    broken = len(not_finite(curve.points))
    first, last = (f"{number(values[i])} at step {steps[i]}" for i in (0, -1))
    text = f"{curve.label} from {first} to {last}".strip()
    return text + (f", {broken} of {len(values)} values not finite" if broken else "")


def _class(kind: str, item: "Curve | Label") -> str:
    return f"{kind} t{item.tone} {item.group}".rstrip()


def _r(position: float) -> float:
    return round(position, 1)
