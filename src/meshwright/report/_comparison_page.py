"""The page of a comparison: the differences, the scores, and the curves of all runs in the same charts."""

import math
from collections.abc import Iterator, Sequence

from meshwright.checkpoint import Mode, mode_of
from meshwright.metrics import duration
from meshwright.report._chart import Curve
from meshwright.report._comparison import BEST, Comparison
from meshwright.report._html import Html, Part, document, tag
from meshwright.report._page import section, style
from meshwright.report._quantities import NUM_TONES, Quantity, drawn, is_of_speed
from meshwright.report._tables import best_number, table
from meshwright.report._words import number_or_dash, said, steps_of


def comparison_page(found: Comparison) -> str:
    """Return a comparison as one HTML file that needs no other."""
    title = " · ".join(found.names)
    return document(title, style(), tag("header", tag("h1", title)), *_sections(found))


def _sections(found: Comparison) -> Iterator[Html]:
    yield section("Runs", _runs(found))
    heads = [_key(i, name) for i, name in enumerate(found.names)]
    for title, rows in (("Configuration", found.settings), ("Environment", found.environment)):
        cells = [[path, *(tag("code", said(value)) for value in values)] for path, values in rows.items()]
        told = table(["", *heads], cells, caption="Where they differ", texts=len(heads) + 1)
        yield section(title, told if cells else tag("p", "the same"))
    modes = {name: mode_of(name.removesuffix(BEST), found.runs[0].settings) for name in found.scores}
    cells = [[name, *_marked(values, modes[name])] for name, values in found.scores.items()]
    if cells:
        yield section("Scores", table(["", *heads], cells, caption="The best of each row marked", texts=1))
    last_step = max(run.step for run in found.runs)
    quantities = _quantities(found)
    for title, is_speed in (("Learning", False), ("Speed", True)):
        charts = drawn([each for each in quantities if each.is_speed == is_speed], last_step)
        if charts:
            yield section(title, tag("div", *charts, class_="charts"))


def _runs(found: Comparison) -> Html:
    rows = [
        [
            _key(i, name),
            tag("span", run.ending.state, class_=f"state {run.ending.state}"),
            run.place,
            steps_of(run),
            duration(run.seconds),
        ]
        for i, (name, run) in enumerate(found.named())
    ]
    return table(["run", "state", "directory", "steps", "trained"], rows, caption="Compared runs", texts=3)


def _quantities(found: Comparison) -> list[Quantity]:
    """Return a chart for each number that more than one run reports, leaving out numbers of single arrays."""
    evaluations = {name for run in found.runs for name in run.evaluations}
    names = sorted({name for run in found.runs for name in run.series})
    charts = []
    for name in names:
        first, slash, _ = name.partition("/")
        curves = [
            Curve(label, run.series[name], _tone(i))
            for i, (label, run) in enumerate(found.named())
            if name in run.series
        ]
        if len(curves) > 1 and (not slash or first in evaluations):
            charts.append(Quantity(name, curves, is_of_speed(name)))
    return sorted(charts, key=lambda chart: (chart.title != "loss", "/" not in chart.title, chart.title))


def _marked(values: Sequence[float | None], mode: Mode | None) -> list[Part]:
    """Return the values as cells; if they differ, the best one is marked."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    best = (min if mode == "min" else max)(finite) if mode and len(set(values)) > 1 and finite else None
    return [
        best_number(value) if value is not None and value == best else number_or_dash(value)
        for value in values
    ]


def _key(i: int, name: str) -> Html:
    return tag("span", tag("i", class_=f"key t{_tone(i)}"), name)


def _tone(i: int) -> int:
    return i % NUM_TONES
