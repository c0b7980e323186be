"""The table of compared runs: what was set, and what came of it. `sort.js` sorts it by any column."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwright.base._internal import duration, number
from meshwright.report._chart import MOST_LABELS
from meshwright.report._comparison import Comparison
from meshwright.report._history import Best, is_finite
from meshwright.report._html import Html, Part, breakable, tag
from meshwright.report._quantities import NUM_TONES
from meshwright.report._tables import best_number
from meshwright.report._varied import Values, as_number
from meshwright.report._words import said, score_title

_DIRECTIONS = {"min": "lower is better", "max": "higher is better", None: "last value"}


@dataclass(frozen=True)
class _Column:
    """A column of the table. `keys` are what its cells are sorted by, "" for those that stand last."""

    title: Part
    cells: Sequence[Part]
    keys: Sequence[str]
    note: str = ""
    is_text: bool = False
    first: str = "ascending"
    """Order of the first sorting; the next one is the opposite."""
    is_sorted: bool = False


def ranked(found: Comparison) -> Html:
    """Return the table of all runs, the best first."""
    columns = list(_columns(found))
    told = "Runs with the settings that differ and their best scores"
    heads = tag("tr", tag("th", _button("run"), scope="col", class_="text"), *map(_head, columns))
    rows = [
        tag("tr", _name(found, i), *(_cell(column, i) for column in columns), class_=f"r{i}")
        for i in range(len(found.runs))
    ]
    caption = tag("caption", tag("span", told))
    whole = tag("table", caption, tag("thead", heads), tag("tbody", *rows), class_="sortable")
    return tag("div", whole, class_="scroll ranked", tabindex="0", role="region", aria_label=told)


def _columns(found: Comparison) -> Iterator[_Column]:
    """Yield the columns: the score that matters, the settings, other scores, then the state of the run."""
    columns = [_of_score(found, name) for name in found.scores]
    main = columns[:1] if found.main_score else []
    yield from main
    yield from (_of_setting(name, values) for name, values in found.settings.items())
    yield from columns[len(main) :]
    yield _of_losses(found.losses)
    states = [run.ending.state for run in found.runs]
    yield _Column("state", [tag("span", x, class_=f"state {x}") for x in states], states, is_text=True)
    steps = [run.step for run in found.runs]
    yield _Column("steps", [f"{step:,}" for step in steps], list(map(str, steps)), first="descending")
    seconds = [run.seconds for run in found.runs]
    yield _Column("trained", list(map(duration, seconds)), list(map(str, seconds)))


def _of_setting(name: str, values: Values) -> _Column:
    is_text = any(value is not None and as_number(value) is None for value in values)
    cells = [tag("code", said(value), title=value) for value in values]
    return _Column(breakable(name), cells, [value or "" for value in values], is_text=is_text)


def _of_score(found: Comparison, name: str) -> _Column:
    each = found.scores[name]
    mode = next((best.mode for best in each if best), None)
    values = [best.value for best in each if best and is_finite(best.value)]
    top = (max if mode == "max" else min)(values) if mode and len(set(values)) > 1 else None
    return _Column(
        breakable(score_title(name, found.chosen)),
        [_of_best(best, top) for best in each],
        [_key(best.value if best else None) for best in each],
        note=_DIRECTIONS[mode],
        first="descending" if mode == "max" else "ascending",
        is_sorted=name == found.main_score,
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


def _cell(column: _Column, i: int) -> Html:
    kind = "text" if column.is_text else "number"
    return tag("td", column.cells[i], class_=kind, data_key=column.keys[i])


def _name(found: Comparison, i: int) -> Html:
    """Return the name of a run, with the box that colours its curves and the key to its colour."""
    name = found.names[i]
    is_shown = "checked" if i < MOST_LABELS else None
    box = tag("input", type="checkbox", id=f"r{i}", checked=is_shown, autocomplete="off")
    key = tag("i", class_=f"key t{i % NUM_TONES}")
    label = tag("label", box, key, tag("span", breakable(name)), title=found.runs[i].place)
    return tag("th", label, scope="row", class_="text", data_key=name)
