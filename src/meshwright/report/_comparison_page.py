"""The page of a comparison: a table of runs, settings and best scores, and the curves of all runs.

The box before a run's name shows its curves in colour, by CSS alone. `sort.js` sorts the table by a column.
"""

import importlib.resources
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.base._internal import duration, number
from meshwright.report._chart import MOST_LABELS, Curve, num_scaled
from meshwright.report._comparison import Comparison, Values, as_number, compare
from meshwright.report._history import Best, is_finite
from meshwright.report._html import Html, Part, breakable, document, tag, write_html
from meshwright.report._page import section, style
from meshwright.report._quantities import NUM_TONES, SECTIONS, Quantity, drawn, section_of
from meshwright.report._run import Run
from meshwright.report._tables import best_number, table
from meshwright.report._words import CHOSEN, CHOSEN_LEGEND, best_text, or_dash, score_title

_DIRECTIONS = {"min": "lower is better", "max": "higher is better", None: "last value"}


@dataclass(frozen=True)
class _Column:
    """A column of the table. Its cells are sorted by `keys`; cells with the key "" come last."""

    title: Part
    cells: Sequence[Part]
    keys: Sequence[str]
    note: str = ""
    is_text: bool = False
    first: str = "ascending"
    """Order of the first sorting; the next one is the opposite."""
    is_sorted: bool = False


def ranked(comparison: Comparison) -> Html:
    """Return the table of all runs, the best first."""
    columns = list(_columns(comparison))
    title = "Runs with the settings that differ and their best scores"
    heads = tag("tr", tag("th", _button("run"), scope="col", class_="text"), *map(_head, columns))
    rows = [
        tag(
            "tr",
            _name(comparison, i),
            *(
                tag(
                    "td",
                    column.cells[i],
                    class_="text" if column.is_text else "number",
                    data_key=column.keys[i],
                )
                for column in columns
            ),
            class_=f"r{i}",
        )
        for i in range(len(comparison.runs))
    ]
    caption = tag("caption", tag("span", title))
    whole = tag("table", caption, tag("thead", heads), tag("tbody", *rows), class_="sortable")
    return tag("div", whole, class_="scroll ranked", tabindex="0", role="region", aria_label=title)


def _columns(comparison: Comparison) -> Iterator[_Column]:
    """Yield the columns: the score that matters, the settings, other scores, then the state of the run."""
    columns = [_of_score(comparison, name) for name in comparison.scores]
    main = columns[:1] if comparison.main_score else []
    yield from main
    yield from (_of_setting(name, values) for name, values in comparison.settings.items())
    yield from columns[len(main) :]
    yield _of_losses(comparison.losses)
    states = [run.ending.state for run in comparison.runs]
    yield _Column("state", [tag("span", x, class_=f"state {x}") for x in states], states, is_text=True)
    steps = [run.step for run in comparison.runs]
    yield _Column("steps", [f"{step:,}" for step in steps], list(map(str, steps)), first="descending")
    seconds = [run.seconds for run in comparison.runs]
    yield _Column("trained", list(map(duration, seconds)), list(map(str, seconds)))


def _of_setting(name: str, values: Values) -> _Column:
    is_text = any(value is not None and as_number(value) is None for value in values)
    cells = [tag("code", or_dash(value), title=value) for value in values]
    return _Column(breakable(name), cells, [value or "" for value in values], is_text=is_text)


def _of_score(comparison: Comparison, name: str) -> _Column:
    bests = comparison.scores[name]
    mode = next((best.mode for best in bests if best), None)
    values = [best.value for best in bests if best and is_finite(best.value)]
    top = (max if mode == "max" else min)(values) if mode and len(set(values)) > 1 else None
    return _Column(
        breakable(score_title(name, comparison.chosen)),
        [_of_best(best, top) for best in bests],
        [_key(best.value if best else None) for best in bests],
        note=_DIRECTIONS[mode],
        first="descending" if mode == "max" else "ascending",
        is_sorted=name == comparison.main_score,
    )


def _of_best(best: Best | None, top: float | None) -> Part:
    if best is None:
        return "–"
    value = best_number(best.value) if best.value == top else number(best.value)
    return tag("span", value, tag("small", f" @{best.step:,}"))


def _of_losses(losses: Sequence[float | None]) -> _Column:
    cells = [
        "–" if x is None else tag("span", number(x), class_=None if is_finite(x) else "alarm") for x in losses
    ]
    return _Column("loss", cells, list(map(_key, losses)), note="of training, last")


def _key(value: float | None) -> str:
    return "" if value is None or not is_finite(value) else repr(value)


def _button(title: Part) -> Html:
    return tag("button", title, type="button")


def _head(column: _Column) -> Html:
    return tag(
        "th",
        _button(column.title),
        tag("small", column.note) if column.note else None,
        scope="col",
        class_="text" if column.is_text else "number",
        data_first=column.first,
        aria_sort=column.first if column.is_sorted else None,
    )


def _name(comparison: Comparison, i: int) -> Html:
    """Return the name of a run, with the box that colours its curves and the key to its colour."""
    name = comparison.names[i]
    is_shown = "checked" if i < MOST_LABELS else None
    box = tag("input", type="checkbox", id=f"r{i}", checked=is_shown, autocomplete="off")
    key = tag("i", class_=f"key t{i % NUM_TONES}")
    label = tag("label", box, key, tag("span", breakable(name)), title=comparison.runs[i].location)
    return tag("th", label, scope="row", class_="text", data_key=name)


_MOST_IN_TITLE = 3
_MOST_OPEN = 8
"""Largest number of runs whose differences are shown unfolded."""


def comparison_page(comparison: Comparison) -> str:
    """Return a comparison as one HTML file that needs no other."""
    names = comparison.names
    title = " · ".join(names) if len(names) <= _MOST_IN_TITLE else f"{len(names)} runs"
    script = importlib.resources.files("meshwright.report").joinpath("sort.js").read_text("utf-8")
    return document(
        title,
        style() + "".join(map(_rules_of, range(len(names)))),
        _header(comparison, title),
        *_sections(comparison),
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


def _header(comparison: Comparison, title: str) -> Html:
    name = comparison.main_score
    best = comparison.scores[name][0] if name else None
    facts = None
    if name and best:
        facts = f"best {score_title(name, comparison.chosen)}: {best_text(best)}, {comparison.names[0]}"
    return tag("header", tag("h1", title), tag("p", facts, class_="facts") if facts else None)


def _sections(comparison: Comparison) -> Iterator[Html]:
    marked = set(comparison.chosen) & set(comparison.scores)
    legend = tag("p", f"{CHOSEN} {CHOSEN_LEGEND}", class_="facts small") if marked else None
    yield section("Runs", ranked(comparison), legend)
    last_step = max(run.step for run in comparison.runs)
    quantities = _quantities(comparison)
    note = (
        tag("p", _scales(len(comparison.runs)), class_="facts small")
        if len(comparison.runs) > MOST_LABELS
        else None
    )
    for title in SECTIONS:
        charts = drawn([quantity for quantity in quantities if quantity.section == title], last_step)
        if charts:
            yield section(title, note, tag("div", *charts, class_="charts several"))
    yield from _differences(comparison)


def _scales(num_runs: int) -> str:
    return (
        f"The best {MOST_LABELS} of {num_runs} runs are in colour; the boxes in the table choose others. "
        f"The scales are those of the best {num_scaled(num_runs)}."
    )


def _differences(comparison: Comparison) -> Iterator[Html]:
    """Yield all settings and facts that differ, one a row."""
    for title, rows in (("All differences", comparison.description), ("Environment", comparison.environment)):
        if not rows:
            yield section(title, tag("p", "the same"))
            continue
        cells = [[path, *(tag("code", or_dash(value)) for value in values)] for path, values in rows.items()]
        content = table(
            ["", *comparison.names], cells, caption="Where they differ", texts=len(comparison.names) + 1
        )
        is_folded = len(comparison.names) > _MOST_OPEN or len(rows) > _MOST_OPEN
        folded = tag("details", tag("summary", f"{len(rows)} lines"), content) if is_folded else content
        yield section(title, folded)


def _quantities(comparison: Comparison) -> list[Quantity]:
    """Return a chart for each number that more than one run reports, leaving out numbers of single arrays."""
    evaluations = {name for run in comparison.runs for name in run.evaluations}
    names = sorted({name for run in comparison.runs for name in run.series})
    charts = []
    for name in names:
        first, slash, _ = name.partition("/")
        curves = [
            Curve(label, run.series[name], i % NUM_TONES, run.best.get(name), f"r{i}")
            for i, (label, run) in enumerate(comparison.named())
            if name in run.series
        ]
        # A number of one run has nothing to be compared with.
        if len(curves) > 1 and (not slash or first in evaluations):
            charts.append((name, Quantity(score_title(name, comparison.chosen), curves, section_of(name))))
    # The loss and the main score come first, then scores, then the rest.
    first_of_all = ("loss", comparison.main_score)
    charts.sort(key=lambda chart: (chart[0] not in first_of_all, "/" not in chart[0], chart[0]))
    return [chart for _, chart in charts]


def write_comparison(runs: Sequence[Run], to: str | Path) -> str:
    """Write an HTML page that compares two or more runs, and return its path."""
    return write_html(comparison_page(compare(runs)), to)
