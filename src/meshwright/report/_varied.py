"""The settings in which runs differ, each once, under a short name.

A setting that was typed for a command goes by the name that was typed. All differences between the runs'
descriptions that follow from it are left out, such as those of functions that closed over it. The others are
shown under the last part of their path, and those with the same values only once.
"""

import ast
from collections.abc import Hashable, Iterable, Mapping, Sequence

from meshwright.report._run import Run

Values = Sequence[str | None]
"""A value for each run; None if it has none."""


def varied(runs: Sequence[Run], described: Mapping[str, Values]) -> dict[str, Values]:
    """Return the settings in which runs differ, by name."""
    names = dict.fromkeys(name for run in runs for name in run.typed)
    typed = different({"function": [run.function for run in runs]})
    typed |= different({name: [_value(run, name) for run in runs] for name in names})
    rest = {path: values for path, values in described.items() if path not in typed}
    rest = {path: values for path, values in rest.items() if not _follows(values, list(typed.values()))}
    return typed | _shortly({path: list(map(plain, values)) for path, values in rest.items()}, typed)


def different(rows: Mapping[str, Values]) -> dict[str, Values]:
    """Return the rows in which not all values are the same. Numbers are the same in whatever notation."""
    return {name: values for name, values in rows.items() if len(set(map(_key, values))) > 1}


def plain(value: str | None) -> str | None:
    """Return the value of a description as a user would type it: a text without its quotes."""
    try:
        text = ast.literal_eval(value) if value and value[0] in "'\"" else None
    except (SyntaxError, ValueError):
        return value
    return text if isinstance(text, str) else value


def as_number(value: str | None) -> float | None:
    """Return the number that a text stands for; None for any other text."""
    try:
        return float(value or "")
    except ValueError:
        return None


def _value(run: Run, name: str) -> str | None:
    return run.typed[name] if name in run.typed else plain(run.settings.get(name))


def _key(value: str | None) -> Hashable:
    number = as_number(value)
    return value if number is None else number


def _follows(values: Values, others: Sequence[Values]) -> bool:
    """Return whether runs that agree in the other settings agree in this one."""
    given = list(zip(*(map(_key, other) for other in others), strict=True)) or [()] * len(values)
    return len(set(zip(given, map(_key, values), strict=True))) == len(set(given))


def _shortly(rows: Mapping[str, Values], taken: Iterable[str]) -> dict[str, Values]:
    """Return the rows under short names; of several with the same values, the one with the shortest path."""
    shortest: dict[tuple[str | None, ...], str] = {}
    for path in sorted(rows, key=lambda path: path.count(".")):
        shortest.setdefault(tuple(rows[path]), path)
    paths = [path for path in rows if path in shortest.values()]
    found: dict[str, Values] = {}
    for path in paths:
        name = next(name for name in _names(path) if _is_only(name, path, paths) and name not in taken)
        found[name] = rows[path]
    return found


def _names(path: str) -> list[str]:
    """Return the names that a path may have, the shortest first: `lr`, `optimizer…lr`, `optimizer.0.lr`."""
    parts = path.split(".")
    named = [part for part in parts if not part.isdecimal()] or parts
    return [named[-1], f"{named[0]}…{named[-1]}", path]


def _is_only(name: str, path: str, paths: Sequence[str]) -> bool:
    return name == path or not any(name in _names(other) for other in paths if other != path)
