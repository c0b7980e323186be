"""The grouping of a run's numbers into charts.

A number of training shares a chart with the same number of evaluations; numbers whose names begin alike,
such as `norm/…`, share one, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.processes._internal import PREFIX
from meshwright.report._chart import Curve, chart
from meshwright.report._history import Best, Series, evaluated
from meshwright.report._html import Html

NUM_TONES = 8
_FAMILY = "/…"
_MOST_OF_A_FAMILY = 8
_SPEED = ("step_seconds", "mfu", "hfu", "input_wait", "tflops_per_device")
"""Numbers about speed, besides those that end in `_per_second` and the seconds of evaluations."""
LEARNING, SPEED, MACHINES = SECTIONS = ("Learning", "Speed", "Machines")
"""The sections of a page that have charts."""


@dataclass(frozen=True)
class Quantity:
    """The contents of a chart."""

    title: str
    curves: Sequence[Curve]
    section: str
    """The section of the page that the chart is in, one of `SECTIONS`."""
    note: str = ""


def quantities(
    series: Mapping[str, Series], evaluations: Sequence[str], best: Mapping[str, Best]
) -> list[Quantity]:
    """Return the charts in order: the loss, the scores, the rest of training, then speed."""
    curves: dict[str, list[Curve]] = {}
    for name, points in series.items():
        title, label, tone = _chart_place(name, evaluations)
        curves.setdefault(title, []).append(Curve(label, points, tone, best.get(name)))
    charts = [_quantity(title, lines) for title, lines in curves.items()]
    return sorted(charts, key=_order)


def drawn(charts: Sequence[Quantity], last_step: int, restarts: Sequence[int] = ()) -> list[Html]:
    """Return the charts of `charts` as HTML, all over the same steps."""
    return [
        chart(
            quantity.title,
            quantity.curves,
            last_step=last_step,
            restarts=restarts,
            from_zero=quantity.section != LEARNING,
            note=quantity.note,
        )
        for quantity in charts
    ]


def section_of(title: str) -> str:
    """Return the section that a number, or a chart, belongs to."""
    if title.startswith(PREFIX):
        return MACHINES
    return SPEED if title in _SPEED or title.endswith(("_per_second", " seconds", "/seconds")) else LEARNING


def _chart_place(name: str, evaluations: Sequence[str]) -> tuple[str, str, int]:
    """Return the title of a number's chart, its label there, and its colour; -1 chooses the colour later."""
    if score := evaluated(name, evaluations):
        title = "evaluation seconds" if score[1] == "seconds" else score[1]
        return title, score[0], 1 + evaluations.index(score[0]) % (NUM_TONES - 1)
    first, slash, rest = name.removeprefix(PREFIX).partition("/")
    if name.startswith(PREFIX):
        return f"{PREFIX}{first}{_FAMILY}", rest, -1
    return (f"{first}{_FAMILY}", rest, -1) if slash else (name, "train", 0)


def _quantity(title: str, curves: Sequence[Curve]) -> Quantity:
    visible = sorted(curves, key=lambda curve: curve.tone)
    section = section_of(title)
    if len(visible) == 1:
        return Quantity(title, [replace(visible[0], label="", tone=max(0, visible[0].tone))], section)
    if title.endswith(_FAMILY):
        largest = sorted(curves, key=lambda curve: -_size(curve))[:_MOST_OF_A_FAMILY]
        visible = [replace(curve, tone=i) for i, curve in enumerate(largest)]
    left_out = len(curves) - len(visible)
    return Quantity(
        title, visible, section, f"the {len(visible)} largest of {len(curves)}" if left_out else ""
    )


def _size(curve: Curve) -> float:
    last = abs(curve.points.last)
    # NaN counts as the largest, so that its curve is shown.
    return last if last == last else float("inf")


def _order(quantity: Quantity) -> tuple[int, str]:
    """Return the key to sort charts by: the loss, scores, the rest, numbers of single arrays; then speed."""
    if quantity.title in _SPEED:
        return 4, str(_SPEED.index(quantity.title))
    is_family = quantity.title.endswith(_FAMILY)
    is_evaluated = not is_family and any(curve.tone for curve in quantity.curves)
    kinds = (quantity.title == "loss", is_evaluated, not is_family, is_family)
    return (kinds.index(True) if quantity.section == LEARNING else 5), quantity.title
