"""A run as a few lines of text or as JSON, and the list of all runs below a directory."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshwright.base._internal import aligned, duration, join, local_path, number, wrapped
from meshwright.errors import MeshwrightError, printable
from meshwright.observe._internal import json_number
from meshwright.report._ledger import Ledger, goodput_document, saving_told, told_seconds
from meshwright.report._run import Run, is_run, read_run
from meshwright.report._sorting import cells_of, score
from meshwright.report._spikes import SpikeSeen
from meshwright.report._words import CHOSEN, CHOSEN_MEANS, best_in_words, facts_of, score_title

Document = dict[str, Any]
_HEADS = ("run", "state", "step", "loss", "score", "best", "ago", "trained", "goodput")
_NUMBERS = (2, 3, 5, 6, 7, 8)
"""Columns of `_HEADS` that hold numbers, which are never shortened."""
_NEEDED = 6
"""Number of columns that are never left out."""


def document(run: Run) -> Document:
    """Return the state, steps and scores of a run as a dict that can be written as strict JSON."""
    last = None if run.history.last is None else run.history.last.get("time")
    return {
        "run": run.place,
        "state": run.ending.state,
        "message": run.ending.message,
        "step": run.step,
        "max_steps": run.max_steps,
        "began_from": list(run.began_from),
        "spikes": [
            asdict(spike) | {"value": json_number(spike.value), "median": json_number(spike.median)}
            for spike in run.spikes
        ],
        "seconds": json_number(run.seconds),
        "ledger": None if run.ledger is None else goodput_document(run.ledger),
        "last_report": None if last is None else json_number(last),
        "newest": {name: json_number(points.last) for name, points in run.series.items()},
        "best": {
            name: {"step": best.step, "value": json_number(best.value), "mode": best.mode}
            for name, best in run.best.items()
        },
        "main_score": run.main_score,
        "chosen": run.chosen,
        "typed": dict(run.typed),
        "settings": run.settings,
        "missing": list(run.missing),
        "damage": list(run.damage),
    }


def summary(run: Run, *, width: int | None = None) -> str:
    """Return the state, steps and scores of a run as a few lines of text.

    Example:
      >>> mw.observe.jsonl("metrics.jsonl")(10, {"loss": 0.5})
      >>> print(mw.report._internal.summary(mw.report.read_run(".")))
      .: unknown
        10 steps in 0:00:00 · 20...Z
        loss 0.5
        missing files: experiment.txt, environment.json, state.txt, logs
    """
    lines = [f"{run.place}: {run.ending.state}", f"  {' · '.join(facts_of(run))}"]
    lines += [f"  began from {printable(source, keep='')}" for source in run.began_from]
    lines += [f"  {line}" for line in run.ending.message.splitlines()]
    if "loss" in run.series:
        lines.append(f"  loss {number(run.series['loss'].last)}")
    lines += [
        f"  {printable(score_title(name, run.chosen), keep='')} {number(points.last)}{_best(run, name)}"
        for name, points in run.scores.items()
    ]
    lines += [f"  {line}" for line in map(_spike, run.spikes)]
    lines += [f"  {line}" for line in _times(run.ledger)] if run.ledger is not None else []
    lines += [f"  missing files: {', '.join(run.missing)}"] if run.missing else []
    lines += [f"  {damage}" for damage in run.damage]
    return "\n".join(wrapped(line, width=width, indent="    ") for line in lines)


def find_runs(directory: str | Path) -> Iterator[Path]:
    """Yield the run directories below `directory`, or itself. Does not look for runs inside runs.

    Folders that cannot be read are yielded, too, as they may contain runs.
    """
    locked: list[OSError] = []
    for path, folders, _ in os.walk(local_path(directory), onerror=locked.append):
        if _may_be_run(Path(path)):
            folders.clear()
            yield Path(path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
    yield from (Path(str(error.filename)) for error in locked)


def _may_be_run(path: Path) -> bool:
    try:
        return is_run(path)
    except OSError:  # `read_run` reports the error
        return True


def list_runs(directory: str | Path, place: str | None = None) -> list[Document]:
    """Return a `document` for each run below a directory, the most recent report first.

    A run that cannot be read at all has the state `damaged`, and a message.

    Example:
      >>> mw.report._internal.list_runs(".")
      []
    """
    found = [_document_of(path, _place_of(path, directory, place)) for path in find_runs(directory)]
    return sorted(found, key=lambda each: (-_last_report(each), each["run"]))


def runs_table(
    runs: Sequence[Document], *, by: str | None = None, columns: Sequence[str] = (), width: int | None = None
) -> str:
    """Return runs as a text table. The errors of a damaged run stand below its row."""
    rows = [_HEADS, *(_row(found, by) for found in runs)]
    if columns:
        more = [[name, *cells_of(runs, name)] for name in columns]
        rows = [(*row[:_NEEDED], *cells) for row, cells in zip(rows, zip(*more, strict=True), strict=True)]
    rows = [tuple(printable(cell, keep="") for cell in row) for row in rows]
    needed = _NEEDED + len(columns)
    while width is not None and len(rows[0]) > needed and max(map(len, aligned(rows))) > width:
        rows = [row[:-1] for row in rows]
    lines = aligned(rows, right=(*_NUMBERS, *range(_NEEDED, needed)), width=width)
    wrong = [[], *([f"  {line}" for line in "\n".join(found["damage"]).splitlines()] for found in runs)]
    told = [each for line, below in zip(lines, wrong, strict=True) for each in (line, *below)]
    is_marked = any(row[4].startswith(CHOSEN) for row in rows)
    return "\n".join([*told, *([f"{CHOSEN} {CHOSEN_MEANS}"] if is_marked else [])])


def _place_of(path: Path, directory: str | Path, place: str | None) -> str:
    """Return the URL of the run in `path`, if `directory` is a copy of `place`; else its path."""
    if place is None or path == Path(directory):
        return place or str(path)
    return join(place, path.relative_to(directory).as_posix())


def _document_of(path: Path, place: str) -> Document:
    try:
        return document(read_run(path, place))
    except (MeshwrightError, ValueError, ArithmeticError, RecursionError) as error:
        return {"run": place, "state": "damaged", "damage": [str(error)]}


def _last_report(found: Mapping[str, Any]) -> float:
    last = found.get("last_report")
    return last if isinstance(last, float) else 0.0


def _row(found: Document, by: str | None) -> tuple[str, ...]:
    name, state = found["run"], found["state"]
    if "step" not in found:
        return (name, state, *[""] * (len(_HEADS) - 2))
    state += ", damaged" if found["damage"] else ""
    of = "" if found["max_steps"] is None else f"/{found['max_steps']}"
    loss = found["newest"].get("loss")
    return (
        name,
        state,
        f"{found['step']}{of}",
        "" if loss is None else number(float(loss)),
        *_scored(found, by or found["main_score"]),
        _ago(time.time() - _last_report(found)) if found["last_report"] else "",
        duration(float(found["seconds"])),
        _goodput(found.get("ledger")),
    )


def _scored(found: Document, by: str | None) -> tuple[str, str]:
    """Return the name of a score, marked if it was chosen, and its best value with the step of it."""
    name = by.removesuffix(":min").removesuffix(":max") if by else None
    value = score(found, name) if name else None
    if name is None or value is None:
        return "", ""
    best = found["best"].get(name)
    return score_title(name, found["chosen"]), f"{number(value)} @{best['step']}" if best else number(value)


def _spike(spike: SpikeSeen) -> str:
    first, last = spike.batches
    return (
        f"loss spike: {printable(spike.metric, keep='')} {number(spike.value)} at step {spike.step}; "
        f"went back to step {spike.continued_after}, left out batches {first} to {last}"
    )


def _times(ledger: Ledger) -> list[str]:
    """Return where the time went, and how often to save, as lines of text."""
    shares = ", ".join(f"{part} {100 * share:.1f} %" for part, _, share in told_seconds(ledger))
    saving = saving_told(ledger)
    total = duration(ledger.total)
    return ([f"of {total}: {shares}"] if shares else []) + ([f"saves: {saving}"] if saving else [])


def _goodput(ledger: Mapping[str, Any] | None) -> str:
    share = None if ledger is None else ledger["goodput"]
    return "" if share is None else f"{100 * share:.1f} %"


def _best(run: Run, name: str) -> str:
    return f", best {best_in_words(run.best[name])}" if name in run.best else ""


def _ago(seconds: float) -> str:
    """Return `5 min`, the time since a report."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
