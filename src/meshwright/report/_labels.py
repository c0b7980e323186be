"""The names and newest values of curves, at their ends, so that none covers another."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshwright.report._html import Html, tag

_LONGEST = 11
_MOST = 8


class Label(NamedTuple):
    """What stands at the end of a curve."""

    name: str
    value: str
    tone: int
    y: float
    x: float


def end_labels(labels: Sequence[Label], bottom: float) -> Iterator[Html]:
    """Yield the texts, moved apart: name over value of a few curves, one line each of many."""
    height = 25.0 if len(labels) <= 3 else 12.5
    shown = sorted(labels[:_MOST], key=lambda label: label.y)
    for label, y in zip(shown, _apart([label.y for label in shown], height, bottom), strict=True):
        yield _two_lines(label, y) if height > 20 and label.name else _one_line(label, y)
    if len(labels) > len(shown):
        told = f"and {len(labels) - len(shown)} more"
        yield tag("text", told, x=labels[0].x, y=bottom + 2, class_="axis faint")


def _apart(places: Sequence[float], height: float, bottom: float) -> list[float]:
    """Return ascending places, each at least `height` below the one before, none below `bottom`."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + height) if found else place)
    limit = bottom
    for i in reversed(range(len(found))):
        found[i] = min(found[i], limit)
        limit = found[i] - height
    return found


def _two_lines(label: Label, y: float) -> Html:
    name = tag("tspan", _cut(label.name), x=label.x, class_="name")
    value = tag("tspan", label.value, x=label.x, dy="1.15em", class_="value")
    whole = tag("title", label.name) if len(label.name) > _LONGEST else None
    return tag("text", whole, name, value, y=round(y - 1, 1), class_=f"label t{label.tone}")


def _one_line(label: Label, y: float) -> Html:
    text = _cut(label.name) if label.name else label.value
    whole = tag("title", f"{label.name} {label.value}".strip())
    return tag("text", whole, text, x=label.x, y=round(y + 4, 1), class_=f"label t{label.tone}")


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
