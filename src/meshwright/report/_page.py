"""The page of one run."""

import base64
import importlib.resources
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from meshwright.base._internal import human_bytes, number
from meshwright.report import _tables
from meshwright.report._html import Html, Part, breakable, document, tag, write_html
from meshwright.report._quantities import SECTIONS, drawn, quantities
from meshwright.report._run import Run
from meshwright.report._scale import short
from meshwright.report._tables import profile
from meshwright.report._words import best_text, facts_of, flat, score_title

PAGE = "report.html"
"""Name of a run's page in its directory."""
_MOST_FIGURES = 3
_MOST_LINES_OPEN = 40


def page(run: Run) -> str:
    """Return the page of a run: one HTML file that needs no scripts, other files or network."""
    sections = {title: part for title, part in _sections(run) if part is not None}
    return document(
        f"{run.location} · {run.ending.state}",
        style(),
        header(run),
        _figures(run),
        tag("nav", *(tag("a", title, href=f"#{_anchor(title)}") for title in sections)),
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
        tag("h1", run.location),
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
    charted = quantities(run.series, run.evaluations, run.best)
    # The first attempt is a start, and no restart.
    restarts = [attempt.first_step for attempt in run.attempts[1:]]
    profile_part, trouble = profile(run.directory)
    for title in SECTIONS:
        charts = drawn([quantity for quantity in charted if quantity.section == title], run.step, restarts)
        yield title, tag("div", *charts, class_="charts") if charts else None
    yield "Evaluations", _tables.evaluations(run)
    yield "Time", _tables.time(run)
    yield "Samples", _samples(run)
    yield "Profile", profile_part if trouble is None else tag("p", trouble, class_="note")
    yield "Checkpoints", _checkpoints(run)
    yield "Attempts", _tables.attempts(run)
    yield "Loss spikes", _tables.spikes(run)
    yield "Incidents", _tables.incidents(run)
    yield "Outputs", _outputs(run)
    yield "Configuration", _tables.two_columns(_lines(run.description)) if run.description else None
    yield "Parameters", _folded(run.parameters) if run.parameters else None
    facts = {name: tag("code", flat(value)) for name, value in run.environment.items() if value is not None}
    yield "Environment", _tables.two_columns(facts) if run.environment else None


def _figures(run: Run) -> Html | None:
    numbers = list(_numbers(run))
    if not numbers:
        return None
    rows = (
        tag("div", tag("dt", breakable(name)), tag("dd", value, tag("small", note)))
        for name, value, note in numbers
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
        count = sizes["num_params"]
        state = f"state {human_bytes(sizes['device_bytes'])} per device" if "device_bytes" in sizes else ""
        yield "parameters", f"{count:,.0f}" if count < 1e6 else short(count), state


def _checkpoints(run: Run) -> Html | None:
    listed = _tables.checkpoints(run)
    if run.checkpoints_path is None:
        return None
    status = "none yet" if listed is None and run.checkpoints is not None else ""
    scores = ((score_title(name, run.chosen), best_text(best)) for name, best in run.best.items())
    best = "; ".join(f"best {name} {words}" for name, words in scores)
    text = " · ".join(filter(None, [run.checkpoints_path, status, best]))
    return tag("div", tag("p", text), listed)


def _outputs(run: Run) -> Html | None:
    if not run.outputs:
        return None
    rows = [
        [f"{run.location}/outputs/{name}", f"{len(files)}", files[-1]] for name, files in run.outputs.items()
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


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def write_page(run: Run, to: str | Path | None = None) -> str:
    """Write the HTML page of a run and return its path.

    Example:
      >>> mw.observe.jsonl("metrics.jsonl")(10, {"loss": 0.5})
      >>> mw.report._internal.write_page(mw.report.read_run("."), "page.html")
      'page.html'
    """
    return write_html(page(run), to or run.directory / PAGE)


@dataclass(frozen=True)
class InlinePage:
    """A run's page, which a notebook shows in a cell."""

    html: str
    """The page."""
    height: int
    """Height of the frame in pixels."""

    def __repr__(self) -> str:
        return f"InlinePage({len(self.html)} characters, height={self.height})"

    def _repr_html_(self) -> str:
        text = escape(self.html)
        return f'<iframe srcdoc="{text}" width="100%" height="{self.height}" style="border: 0"></iframe>'


def inline_page(run: Run, height: int = 600) -> InlinePage:
    """Return the HTML page of a run as a value that a notebook shows if it is the last value of a cell.

    Args:
      run: The run, as `read_run` returns it.
      height: The height of the frame in pixels.

    Example:
      >>> mw.observe.jsonl("metrics.jsonl")(10, {"loss": 0.5})
      >>> mw.report.inline_page(mw.report.read_run("."))
      InlinePage(... characters, height=600)
    """
    return InlinePage(page(run), height)
