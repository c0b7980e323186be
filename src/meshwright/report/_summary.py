"""A run as a few lines of text or as JSON, and the list of all runs below a directory, sorted by a score.

Sorting and columns read the documents of `list_runs`. They open no files.
"""

import ast
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshwright.base._internal import aligned, duration, join, local_path, number, wrapped
from meshwright.checkpoints._internal import mode_of, score_and_mode
from meshwright.errors import MeshwrightError, UsageError, did_you_mean, printable
from meshwright.observe._internal import json_number
from meshwright.report._ledger import Ledger, goodput_document, saving_advice, spent_seconds
from meshwright.report._records import Spike
from meshwright.report._run import Run, is_run, read_run
from meshwright.report._words import CHOSEN, CHOSEN_LEGEND, best_text, facts_of, plain, score_title

Document = dict[str, Any]

_MOST_NAMED = 12


def sort_runs(runs: Sequence[Document], by: str) -> list[Document]:
    """Return runs in the order of a score, the best first, and those without a value last.

    Example:
      >>> runs = [{"run": name, "newest": {"loss": loss}} for name, loss in (("a", 0.5), ("b", 0.25))]
      >>> [run["run"] for run in mw.report.sort_runs(runs, "loss")]
      ['b', 'a']
    """
    name, mode = score_and_mode(by)
    names = _numbers(runs)
    if name not in names:
        raise _unknown("score", name, names, [])
    modes_of_runs = (run["best"][name]["mode"] for run in runs if name in run.get("best", {}))
    mode = mode or next(modes_of_runs, None) or mode_of(name, {})
    if mode is None:
        raise UsageError(
            f"nothing tells whether lower or higher values of {name!r} are better.\n"
            f"  Write --sort {name}:min or --sort {name}:max."
        )
    # The best comes first.
    sign = -1 if mode == "max" else 1
    values = {id(run): score(run, name) for run in runs}
    return sorted(runs, key=lambda run: _rank(values[id(run)], sign))


def score(run: Document, name: str) -> float | None:
    """Return the best value of a score, or the newest of any other number; None if there is no finite one."""
    name = score_and_mode(name)[0]
    value = run.get("best", {}).get(name, {}).get("value", run.get("newest", {}).get(name))
    return None if value is None or not math.isfinite(float(value)) else float(value)


def cells_of(runs: Sequence[Document], name: str) -> list[str]:
    """Return the values of a setting or a score as text, one for each run, "" where there is none.

    The name is first looked up among the settings that users typed, then among all settings, by their whole
    path or by its end, and last among the scores.
    """
    setting = _setting(runs, name)
    # A setting of this name may hold the function that makes the number so named. Then the number is shown.
    texts = [text for text in map(setting, runs) if text is not None] if setting else []
    if setting is not None and (name not in _numbers(runs) or any(map(_is_literal, texts))):
        return [setting(run) or "" for run in runs]
    if name not in _numbers(runs):
        raise _unknown("setting or score", name, _numbers(runs), runs)
    values = [score(run, name) for run in runs]
    return ["" if value is None else number(value) for value in values]


def _rank(value: float | None, sign: int) -> tuple[bool, float]:
    return value is None, sign * (value or 0.0)


def _numbers(runs: Sequence[Document]) -> list[str]:
    """Return the names of all reported numbers, the scores first."""
    best = [name for run in runs for name in run.get("best", {})]
    return list(dict.fromkeys([*best, *(name for run in runs for name in run.get("newest", {}))]))


def _setting(runs: Sequence[Document], name: str) -> Callable[[Document], str | None] | None:
    """Return the function that finds a setting in a run; None if there is no such setting."""
    if any(name in run.get("typed", {}) for run in runs):
        return lambda run: run.get("typed", {}).get(name, plain(run.get("settings", {}).get(name)))
    paths = dict.fromkeys(path for run in runs for path in run.get("settings", {}))
    ends = [name] if name in paths else [path for path in paths if path.endswith(f".{name}")]
    columns = {tuple(run.get("settings", {}).get(path) for run in runs): path for path in reversed(ends)}
    if len(columns) > 1:
        listed = "".join(f"\n    {path}" for path in [*columns.values()][::-1][:_MOST_NAMED])
        raise UsageError(f"several settings are called {name}. Give the path of one of them:{listed}")
    return (lambda run: plain(run.get("settings", {}).get(ends[0]))) if ends else None


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _unknown(kind: str, name: str, numbers: Sequence[str], runs: Sequence[Document]) -> UsageError:
    typed = list(dict.fromkeys(setting for run in runs for setting in run.get("typed", {})))
    paths = dict.fromkeys(path for run in runs for path in run.get("settings", {}))
    ends = dict.fromkeys(path.rpartition(".")[2] for path in paths)
    hint = did_you_mean(name, dict.fromkeys([*typed, *numbers, *ends, *paths]))
    lists = [
        f"  {title}: {', '.join(names[:_MOST_NAMED])}{', …' if len(names) > _MOST_NAMED else ''}."
        for title, names in (("Settings", typed), ("Scores and other numbers", numbers))
        if names
    ]
    return UsageError("\n".join([f"no run has a {kind} {name!r}.{hint}", *lists]))


_HEADS = ("run", "state", "step", "loss", "score", "best", "ago", "trained", "goodput")
_NUMBERS = (2, 3, 5, 6, 7, 8)
"""Columns of `_HEADS` that hold numbers, which are never shortened."""
_NEEDED = 6
"""Number of columns that are never left out."""


def document(run: Run) -> Document:
    """Return the state, steps and scores of a run as a dict that can be written as strict JSON."""
    last = None if run.history.last is None else run.history.last.get("time")
    return {
        "run": run.location,
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
    lines = [f"{run.location}: {run.ending.state}", f"  {' · '.join(facts_of(run))}"]
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
            # A run has no runs inside, so its folders are not searched.
            folders.clear()
            yield Path(path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
    yield from (Path(str(error.filename)) for error in locked)


def _may_be_run(path: Path) -> bool:
    try:
        return is_run(path)
    except OSError:  # `read_run` reports the error
        return True


def list_runs(directory: str | Path, location: str | None = None) -> list[Document]:
    """Return a `document` for each run below a directory, the most recent report first.

    A run that cannot be read at all has the state `damaged`, and a message.

    Example:
      >>> mw.report.list_runs(".")
      []
    """
    documents = [_document_of(path, _location_of(path, directory, location)) for path in find_runs(directory)]
    return sorted(
        documents, key=lambda document_of_run: (-_last_report(document_of_run), document_of_run["run"])
    )


def runs_table(
    runs: Sequence[Document], *, by: str | None = None, columns: Sequence[str] = (), width: int | None = None
) -> str:
    """Return runs as a text table. The errors of a damaged run are below its row."""
    rows = [_HEADS, *(_row(run, by) for run in runs)]
    if columns:
        more = [[name, *cells_of(runs, name)] for name in columns]
        rows = [(*row[:_NEEDED], *cells) for row, cells in zip(rows, zip(*more, strict=True), strict=True)]
    rows = [tuple(printable(cell, keep="") for cell in row) for row in rows]
    needed = _NEEDED + len(columns)
    # Columns are left out from the right, until the table fits.
    while width is not None and len(rows[0]) > needed and max(map(len, aligned(rows))) > width:
        rows = [row[:-1] for row in rows]
    lines = aligned(rows, right=(*_NUMBERS, *range(_NEEDED, needed)), width=width)
    wrong = [[], *([f"  {line}" for line in "\n".join(run["damage"]).splitlines()] for run in runs)]
    texts = [text for line, below in zip(lines, wrong, strict=True) for text in (line, *below)]
    is_marked = any(row[4].startswith(CHOSEN) for row in rows)
    return "\n".join([*texts, *([f"{CHOSEN} {CHOSEN_LEGEND}"] if is_marked else [])])


def _location_of(path: Path, directory: str | Path, location: str | None) -> str:
    """Return the URL of the run in `path`, if `directory` is a copy of `location`; else its path."""
    if location is None or path == Path(directory):
        return location or str(path)
    return join(location, path.relative_to(directory).as_posix())


def _document_of(path: Path, location: str) -> Document:
    try:
        return document(read_run(path, location))
    except (MeshwrightError, ValueError, ArithmeticError, RecursionError) as error:
        return {"run": location, "state": "damaged", "damage": [str(error)]}


def _last_report(run: Mapping[str, Any]) -> float:
    last = run.get("last_report")
    return last if isinstance(last, float) else 0.0


def _row(run: Document, score_name: str | None) -> tuple[str, ...]:
    name, state = run["run"], run["state"]
    if "step" not in run:
        return (name, state, *[""] * (len(_HEADS) - 2))
    state += ", damaged" if run["damage"] else ""
    total = "" if run["max_steps"] is None else f"/{run['max_steps']}"
    loss, goodput = run["newest"].get("loss"), (run.get("ledger") or {}).get("goodput")
    return (
        name,
        state,
        f"{run['step']}{total}",
        "" if loss is None else number(float(loss)),
        *_scored(run, score_name or run["main_score"]),
        _ago(time.time() - _last_report(run)) if run["last_report"] else "",
        duration(float(run["seconds"])),
        "" if goodput is None else f"{100 * goodput:.1f} %",
    )


def _scored(run: Document, score_name: str | None) -> tuple[str, str]:
    """Return the name of a score, marked if it was chosen, and its best value with the step of it."""
    name = score_name.removesuffix(":min").removesuffix(":max") if score_name else None
    value = score(run, name) if name else None
    if name is None or value is None:
        return "", ""
    best = run["best"].get(name)
    return score_title(name, run["chosen"]), f"{number(value)} @{best['step']}" if best else number(value)


def _spike(spike: Spike) -> str:
    first, last = spike.batches
    return (
        f"loss spike: {printable(spike.metric, keep='')} {number(spike.value)} at step {spike.step}; "
        f"went back to step {spike.continued_after}, left out batches {first} to {last}"
    )


def _times(ledger: Ledger) -> list[str]:
    """Return the shares of the time, and how often to save, as lines of text."""
    shares = ", ".join(f"{part} {100 * share:.1f} %" for part, _, share in spent_seconds(ledger))
    saving = saving_advice(ledger)
    total = duration(ledger.total)
    return ([f"of {total}: {shares}"] if shares else []) + ([f"saves: {saving}"] if saving else [])


def _best(run: Run, name: str) -> str:
    return f", best {best_text(run.best[name])}" if name in run.best else ""


def _ago(seconds: float) -> str:
    """Return `5 min`, the time since a report."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
