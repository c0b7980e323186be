"""The page of one run."""

import base64
import importlib.resources
from collections.abc import Iterator, Mapping

from meshwright.base._internal import human_bytes, number
from meshwright.report import _tables
from meshwright.report._html import Html, Part, breakable, document, tag
from meshwright.report._profile import profile
from meshwright.report._quantities import SECTIONS, drawn, quantities
from meshwright.report._run import Run
from meshwright.report._scale import short
from meshwright.report._words import best_in_words, facts_of, flat, score_title

_MOST_FIGURES = 3
_MOST_LINES_OPEN = 40


def page(run: Run) -> str:
    """Return the page of a run: one HTML file that needs no scripts, other files or network."""
    sections = {title: part for title, part in _sections(run) if part is not None}
    return document(
        f"{run.place} · {run.ending.state}",
        style(),
        header(run),
        _figures(run),
        _contents(sections),
        *(section(title, part) for title, part in sections.items()),
    )


def style() -> str:
    """Return the CSS of all pages."""
    return importlib.resources.files("meshwright.report").joinpath("page.css").read_text("utf-8")


def header(run: Run) -> Html:
    """Return the top of the page: the run's state, name, facts and last message."""
    ending = run.ending
    return tag(
        "header",
        tag("p", ending.state, class_=f"state {ending.state}"),
        tag("h1", run.place),
        tag("p", " · ".join(facts_of(run)), class_="facts"),
        *(tag("p", f"began from {source}", class_="facts") for source in run.began_from),
        tag("p", ending.message, class_="message") if ending.message else None,
        tag("p", f"Missing files: {', '.join(run.missing)}", class_="note") if run.missing else None,
        *(tag("p", damage, class_="note") for damage in run.damage),
    )


def section(title: str, *parts: Part) -> Html:
    """Return a section of a page, under a heading with an anchor."""
    return tag("section", tag("h2", title), *parts, id=_anchor(title))


def _sections(run: Run) -> Iterator[tuple[str, Html | None]]:
    found = quantities(run.series, run.evaluations, run.best)
    restarts = [attempt.first_step for attempt in run.attempts[1:]]
    told, trouble = profile(run.directory)
    for title in SECTIONS:
        charts = drawn([each for each in found if each.section == title], run.step, restarts)
        yield title, tag("div", *charts, class_="charts") if charts else None
    yield "Evaluations", _tables.evaluations(run)
    yield "Time", _tables.time(run)
    yield "Samples", _samples(run)
    yield "Profile", told if trouble is None else tag("p", trouble, class_="note")
    yield "Checkpoints", _checkpoints(run)
    yield "Attempts", _tables.attempts(run)
    yield "Loss spikes", _tables.spikes(run)
    yield "Incidents", _tables.incidents(run)
    yield "Outputs", _outputs(run)
    yield "Configuration", _tables.two_columns(_lines(run.description)) if run.description else None
    yield "Parameters", _folded(run.parameters) if run.parameters else None
    yield "Environment", _tables.two_columns(_environment(run)) if run.environment else None


def _contents(sections: Mapping[str, Html]) -> Html:
    return tag("nav", *(tag("a", title, href=f"#{_anchor(title)}") for title in sections))


def _figures(run: Run) -> Html | None:
    found = list(_numbers(run))
    if not found:
        return None
    rows = (
        tag("div", tag("dt", breakable(name)), tag("dd", value, tag("small", note)))
        for name, value, note in found
    )
    return tag("dl", *rows, class_="figures")


def _numbers(run: Run) -> Iterator[tuple[str, str, str]]:
    """Yield the run's most important numbers: name, value, and a note."""
    series, sizes = run.series, run.sizes
    if "loss" in series:
        yield "loss", number(series["loss"].last), f"of training, step {series['loss'].steps[-1]:,}"
    for name, best in list(run.best.items())[:_MOST_FIGURES]:
        yield score_title(name, run.chosen), number(best.value), f"best, step {best.step:,}"
    if "step_seconds" in series:
        yield "step time", f"{number(1000 * series['step_seconds'].last)} ms", "median at the end"
    if "mfu" in series:
        yield "mfu", f"{100 * series['mfu'].last:.1f} %", "of the devices’ peak"
    if run.ledger is not None and run.ledger.goodput is not None:
        yield "goodput", f"{100 * run.ledger.goodput:.1f} %", "of the time in steps that count"
    if "num_params" in sizes:
        yield "parameters", _count(sizes["num_params"]), _state_size(sizes)


def _count(value: float) -> str:
    return f"{value:,.0f}" if value < 1e6 else short(value)


def _state_size(sizes: Mapping[str, float]) -> str:
    return f"state {human_bytes(sizes['device_bytes'])} per device" if "device_bytes" in sizes else ""


def _checkpoints(run: Run) -> Html | None:
    listed = _tables.checkpoints(run)
    if run.checkpoints_path is None:
        return None
    kept = "none yet" if listed is None and run.checkpoints is not None else ""
    scores = ((score_title(name, run.chosen), best_in_words(best)) for name, best in run.best.items())
    best = "; ".join(f"best {name} {words}" for name, words in scores)
    told = " · ".join(filter(None, [run.checkpoints_path, kept, best]))
    return tag("div", tag("p", told), listed)


def _outputs(run: Run) -> Html | None:
    if not run.outputs:
        return None
    rows = [
        [f"{run.place}/outputs/{name}", f"{len(files)}", files[-1]] for name, files in run.outputs.items()
    ]
    return _tables.table(
        ["evaluation", "files", "newest"], rows, caption="Files with the model's output for each example"
    )


def _samples(run: Run) -> Html | None:
    if run.samples is None:
        return None
    names, rows = run.samples.names, run.samples.rows
    cells = [[_sample(row.get(name)) for name in names] for row in rows]
    caption = f"Samples of the model, step {run.samples.step:,}"
    return _tables.table(names, cells, caption=caption, texts=len(names))


def _sample(value: str | float | bytes | None) -> Part:
    if isinstance(value, bytes):
        return tag("img", src=f"data:image/png;base64,{base64.b64encode(value).decode()}", alt="")
    return tag("pre", "" if value is None else str(value))


def _lines(description: str) -> dict[str, Part]:
    return {
        path: tag("code", value)
        for path, _, value in (line.partition(" = ") for line in description.splitlines())
    }


def _folded(text: str) -> Html:
    lines = tag("pre", text, class_="scroll", tabindex="0")
    count = text.count("\n")
    return lines if count <= _MOST_LINES_OPEN else tag("details", tag("summary", f"{count} lines"), lines)


def _environment(run: Run) -> dict[str, Part]:
    return {name: tag("code", flat(value)) for name, value in run.environment.items() if value is not None}


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")
