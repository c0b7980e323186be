"""Runs sorted by a score, and values of settings and scores for the columns of a table.

These functions read the documents that `list_runs` returns. They open no files.
"""

import ast
import math
from collections.abc import Callable, Sequence
from typing import Any

from meshwright.base._internal import number
from meshwright.checkpoints._internal import mode_of, score_and_mode
from meshwright.errors import UsageError, did_you_mean
from meshwright.report._varied import plain

Document = dict[str, Any]

_MOST_NAMED = 12


def sort_runs(runs: Sequence[Document], by: str) -> list[Document]:
    """Return runs in the order of a score, the best first, and those without a value last.

    Example:
      >>> runs = [{"run": name, "newest": {"loss": loss}} for name, loss in (("a", 0.5), ("b", 0.25))]
      >>> [run["run"] for run in mw.report._internal.sort_runs(runs, "loss")]
      ['b', 'a']
    """
    name, mode = score_and_mode(by)
    known = _numbers(runs)
    if name not in known:
        raise _unknown("score", name, known, [])
    modes_of_runs = (run["best"][name]["mode"] for run in runs if name in run.get("best", {}))
    mode = mode or next(modes_of_runs, None) or mode_of(name, {})
    if mode is None:
        raise UsageError(
            f"nothing tells whether lower or higher values of {name!r} are better.\n"
            f"  Write --sort {name}:min or --sort {name}:max."
        )
    sign = -1 if mode == "max" else 1
    values = {id(run): score(run, name) for run in runs}
    return sorted(runs, key=lambda run: _rank(values[id(run)], sign))


def score(run: Document, name: str) -> float | None:
    """Return the best value of a score, or the newest of any other number; None if there is no finite one."""
    name = score_and_mode(name)[0]
    found = run.get("best", {}).get(name, {}).get("value", run.get("newest", {}).get(name))
    return None if found is None or not math.isfinite(float(found)) else float(found)


def cells_of(runs: Sequence[Document], name: str) -> list[str]:
    """Return the values of a setting or a score as text, one for each run, "" where there is none.

    The name is first looked up among the settings that users typed, then among all settings, by their whole
    path or by its end, and last among the scores.
    """
    setting = _setting(runs, name)
    if setting is not None and (name not in _numbers(runs) or _is_plain(runs, setting)):
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


def _is_plain(runs: Sequence[Document], setting: Callable[[Document], str | None]) -> bool:
    """Return whether a setting holds a number, and not the function that makes the number so named."""
    return any(_is_literal(text) for text in map(setting, runs) if text is not None)


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _unknown(kind: str, name: str, numbers: Sequence[str], runs: Sequence[Document]) -> UsageError:
    typed = list(dict.fromkeys(each for run in runs for each in run.get("typed", {})))
    paths = dict.fromkeys(path for run in runs for path in run.get("settings", {}))
    ends = dict.fromkeys(path.rpartition(".")[2] for path in paths)
    hint = did_you_mean(name, dict.fromkeys([*typed, *numbers, *ends, *paths]))
    lists = [
        f"  {title}: {', '.join(names[:_MOST_NAMED])}{', …' if len(names) > _MOST_NAMED else ''}."
        for title, names in (("Settings", typed), ("Scores and other numbers", numbers))
        if names
    ]
    return UsageError("\n".join([f"no run has a {kind} {name!r}.{hint}", *lists]))
