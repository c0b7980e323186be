"""The page of a comparison: a table of runs, settings and best scores, and the curves of all runs.

The box before a run's name shows its curves in colour, by CSS alone. `sort.js` sorts the table by a column.
"""

import importlib.resources
from collections.abc import Iterator

from meshwright.report._chart import MOST_LABELS, Curve, num_scaled
from meshwright.report._comparison import Comparison
from meshwright.report._html import Html, document, tag
from meshwright.report._page import section, style
from meshwright.report._quantities import NUM_TONES, SECTIONS, Quantity, drawn, section_of
from meshwright.report._ranked import ranked
from meshwright.report._tables import table
from meshwright.report._words import CHOSEN, CHOSEN_MEANS, best_in_words, said, score_title

_MOST_IN_TITLE = 3
_MOST_OPEN = 8
"""Largest number of runs whose differences are shown unfolded."""


def comparison_page(found: Comparison) -> str:
    """Return a comparison as one HTML file that needs no other."""
    names = found.names
    title = " · ".join(names) if len(names) <= _MOST_IN_TITLE else f"{len(names)} runs"
    script = importlib.resources.files("meshwright.report").joinpath("sort.js").read_text("utf-8")
    return document(
        title,
        style() + "".join(map(_rules_of, range(len(names)))),
        _header(found, title),
        *_sections(found),
        tag("script", Html(script)),
    )


def _rules_of(i: int) -> str:
    """Return the CSS that colours the curves of a run if its box is checked, and stresses them."""
    return (
        f"main:has(#r{i}:checked) .r{i} {{ --tone: var(--c{i % NUM_TONES}); opacity: 1; }}\n"
        f"main:not(:has(#r{i}:checked)) .label.r{i} {{ display: none; }}\n"
        f"main:has(tr.r{i}:hover) .curve.r{i}, main:has(#r{i}:focus-visible) .curve.r{i}"
        " { --tone: var(--ink); opacity: 1; --line: 3; }\n"
    )


def _header(found: Comparison, title: str) -> Html:
    name = found.main_score
    best = found.scores[name][0] if name else None
    facts = None
    if name and best:
        facts = f"best {score_title(name, found.chosen)}: {best_in_words(best)}, {found.names[0]}"
    return tag("header", tag("h1", title), tag("p", facts, class_="facts") if facts else None)


def _sections(found: Comparison) -> Iterator[Html]:
    marked = set(found.chosen) & set(found.scores)
    legend = tag("p", f"{CHOSEN} {CHOSEN_MEANS}", class_="facts small") if marked else None
    yield section("Runs", ranked(found), legend)
    last_step = max(run.step for run in found.runs)
    quantities = _quantities(found)
    told = tag("p", _scales(len(found.runs)), class_="facts small") if len(found.runs) > MOST_LABELS else None
    for title in SECTIONS:
        charts = drawn([each for each in quantities if each.section == title], last_step)
        if charts:
            yield section(title, told, tag("div", *charts, class_="charts several"))
    yield from _differences(found)


def _scales(num_runs: int) -> str:
    return (
        f"The best {MOST_LABELS} of {num_runs} runs are in colour; the boxes in the table choose others. "
        f"The scales are those of the best {num_scaled(num_runs)}."
    )


def _differences(found: Comparison) -> Iterator[Html]:
    """Yield all settings and facts that differ, one a row."""
    for title, rows in (("All differences", found.description), ("Environment", found.environment)):
        if not rows:
            yield section(title, tag("p", "the same"))
            continue
        cells = [[path, *(tag("code", said(value)) for value in values)] for path, values in rows.items()]
        told = table(["", *found.names], cells, caption="Where they differ", texts=len(found.names) + 1)
        is_folded = len(found.names) > _MOST_OPEN or len(rows) > _MOST_OPEN
        folded = tag("details", tag("summary", f"{len(rows)} lines"), told) if is_folded else told
        yield section(title, folded)


def _quantities(found: Comparison) -> list[Quantity]:
    """Return a chart for each number that more than one run reports, leaving out numbers of single arrays."""
    evaluations = {name for run in found.runs for name in run.evaluations}
    names = sorted({name for run in found.runs for name in run.series})
    charts = []
    for name in names:
        first, slash, _ = name.partition("/")
        curves = [
            Curve(label, run.series[name], i % NUM_TONES, run.best.get(name), f"r{i}")
            for i, (label, run) in enumerate(found.named())
            if name in run.series
        ]
        if len(curves) > 1 and (not slash or first in evaluations):
            charts.append((name, Quantity(score_title(name, found.chosen), curves, section_of(name))))
    first_of_all = ("loss", found.main_score)
    charts.sort(key=lambda chart: (chart[0] not in first_of_all, "/" not in chart[0], chart[0]))
    return [chart for _, chart in charts]
