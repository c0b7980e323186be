"""A comparison of runs: their differing settings and environments, and their scores.

A setting that was typed for a command goes by the name that was typed. All differences between the runs'
descriptions that follow from this setting are left out, such as those of functions that closed over it. The
others are shown under the last part of their path, and those with the same values only once.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.base._internal import aligned, documented, number, wrapped
from meshwright.errors import UsageError, printable
from meshwright.observe._internal import json_number
from meshwright.report._history import Best
from meshwright.report._run import Run
from meshwright.report._summary import document
from meshwright.report._words import CHOSEN, CHOSEN_LEGEND, flat, or_dash, plain, score_title

Values = Sequence[str | None]
"""A value for each run; None if it has none."""


def varied(runs: Sequence[Run], described: Mapping[str, Values]) -> dict[str, Values]:
    """Return the settings in which runs differ, by name."""
    names = dict.fromkeys(name for run in runs for name in run.typed)
    typed = different({"function": [run.function for run in runs]})
    typed |= different(
        {name: [run.typed.get(name, plain(run.settings.get(name))) for run in runs] for name in names}
    )
    rest = {path: values for path, values in described.items() if path not in typed}
    # A difference that follows from a typed setting is shown once, as that setting.
    rest = {path: values for path, values in rest.items() if not _follows(values, list(typed.values()))}
    return typed | _shortly({path: list(map(plain, values)) for path, values in rest.items()}, typed)


def different(rows: Mapping[str, Values]) -> dict[str, Values]:
    """Return the rows in which not all values are the same. Numbers are the same in whatever notation."""
    return {name: values for name, values in rows.items() if len(set(map(_key, values))) > 1}


def as_number(value: str | None) -> float | None:
    """Return the number that a text denotes; None for any other text."""
    try:
        return float(value or "")
    except ValueError:
        return None


def _key(value: str | None) -> Hashable:
    number = as_number(value)
    return value if number is None else number


def _follows(values: Values, others: Sequence[Values]) -> bool:
    """Return whether runs that agree in the other settings agree in this one."""
    combinations = list(zip(*(map(_key, other) for other in others), strict=True)) or [()] * len(values)
    return len(set(zip(combinations, map(_key, values), strict=True))) == len(set(combinations))


def _shortly(rows: Mapping[str, Values], used_names: Iterable[str]) -> dict[str, Values]:
    """Return the rows under short names; of several with the same values, the one with the shortest path."""
    shortest: dict[tuple[str | None, ...], str] = {}
    for path in sorted(rows, key=lambda path: path.count(".")):
        shortest.setdefault(tuple(rows[path]), path)
    paths = [path for path in rows if path in shortest.values()]
    renamed: dict[str, Values] = {}
    for path in paths:
        others = {name for other in paths if other != path for name in _names(other)} | set(used_names)
        # The whole path is the last of the names, and no other path has it.
        name = next(name for name in _names(path) if name not in others)
        renamed[name] = rows[path]
    return renamed


def _names(path: str) -> list[str]:
    """Return the names that a path may have, the shortest first: `lr`, `optimizer…lr`, `optimizer.0.lr`."""
    parts = path.split(".")
    named = [part for part in parts if not part.isdecimal()] or parts
    return [named[-1], f"{named[0]}…{named[-1]}", path]


_ALWAYS_DIFFERENT = ("workdir",)


@documented
@dataclass(frozen=True)
class Comparison:
    """Two or more runs, the best first, and their differences. Lists have one entry per run.

    The best run is that with the best value of `main_score`. Runs without a value come last.
    """

    runs: Sequence[Run]
    """The runs that are compared."""
    names: Sequence[str]
    """Short, distinct names of the runs."""
    settings: Mapping[str, Values]
    """The settings that differ, each once, by the name that was typed, or by a short one."""
    description: Mapping[str, Values]
    """All differences between the runs' descriptions, by dotted path."""
    environment: Mapping[str, Values]
    """The facts about machine, mesh and versions that differ, by name."""
    losses: Sequence[float | None]
    """The last training loss of each run."""
    scores: Mapping[str, Sequence[Best | None]]
    """The best value of each score; the last one if it is not known whether lower or higher is better."""
    chosen: Sequence[str]
    """The names of the scores that a user chose as best, to keep checkpoints by or to end a run."""
    main_score: str | None
    """The score by which the runs are sorted."""

    def named(self) -> list[tuple[str, Run]]:
        """Return the runs with their names."""
        return list(zip(self.names, self.runs, strict=True))


def compare(runs: Sequence[Run]) -> Comparison:
    """Return the comparison of two or more runs."""
    if len(runs) < 2:
        raise UsageError(f"a comparison needs two runs or more; found {len(runs)}.")
    # The first run that has a main score decides for all.
    main_score = next((run.main_score for run in runs if run.main_score), None)
    ordered = sorted(runs, key=lambda run: _rank(run.best.get(main_score or "")))
    # Each run has a workdir of its own.
    settings = [
        {path: value for path, value in run.settings.items() if path not in _ALWAYS_DIFFERENT}
        for run in ordered
    ]
    described = different(_side_by_side(settings))
    chosen = list(dict.fromkeys(name for run in ordered for name in run.chosen))
    scores = dict.fromkeys(name for run in ordered for name in run.scores)
    names = sorted(scores, key=lambda name: (name != main_score, name not in chosen))
    return Comparison(
        runs=ordered,
        names=_short_names([Path(run.location) for run in ordered]),
        settings=varied(ordered, described),
        description=described,
        environment=different(_side_by_side([_environment(run) for run in ordered])),
        losses=[run.series["loss"].last if "loss" in run.series else None for run in ordered],
        scores={name: [_best_or_last(run, name) for run in ordered] for name in names},
        chosen=chosen,
        main_score=main_score,
    )


def comparison_text(comparison: Comparison, *, width: int | None = None) -> str:
    """Return a comparison as text: a table of the runs, and the facts of the environment that differ."""
    heads = ["run", "state", "step", *comparison.settings]
    scores = [score_title(name, comparison.chosen) for name in comparison.scores]
    rows = [[*heads, *scores, "loss"], *(_text_row(comparison, i) for i in range(len(comparison.runs)))]
    numbers = range(len(heads), len(rows[0]))
    cells = [[printable(cell, keep="") for cell in row] for row in rows]
    lines = aligned(cells, right=(2, *numbers), width=width)
    lines += [f"{CHOSEN} {CHOSEN_LEGEND}"] if set(comparison.chosen) & set(comparison.scores) else []
    same = "" if comparison.settings else "settings: the same"
    lines += [
        "",
        *filter(None, [same]),
        f"environment: {'' if comparison.environment else 'the same'}".rstrip(),
    ]
    lines += [
        wrapped(f"  {name}: {' | '.join(map(or_dash, values))}", width=width, indent="    ")
        for name, values in comparison.environment.items()
    ]
    return "\n".join(lines)


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as a dict that can be written as strict JSON."""
    return {
        "runs": [document(run) for run in comparison.runs],
        "settings": {name: list(values) for name, values in comparison.settings.items()},
        "description": {path: list(values) for path, values in comparison.description.items()},
        "environment": {name: list(values) for name, values in comparison.environment.items()},
        "losses": [None if loss is None else json_number(loss) for loss in comparison.losses],
        "scores": {
            name: [None if best is None else json_number(best.value) for best in bests]
            for name, bests in comparison.scores.items()
        },
        "chosen": list(comparison.chosen),
        "main_score": comparison.main_score,
    }


def _rank(best: Best | None) -> tuple[bool, float]:
    """Return the key to sort runs by, the best first."""
    if best is None:
        return True, 0.0
    return False, -best.value if best.mode == "max" else best.value


def _best_or_last(run: Run, name: str) -> Best | None:
    if name in run.best or name not in run.scores:
        return run.best.get(name)
    points = run.scores[name]
    return Best(points.steps[-1], points.last, None)


def _text_row(comparison: Comparison, i: int) -> list[str]:
    run, loss = comparison.runs[i], comparison.losses[i]
    return [
        comparison.names[i],
        run.ending.state,
        f"{run.step}" if run.max_steps is None else f"{run.step}/{run.max_steps}",
        *(or_dash(values[i]) for values in comparison.settings.values()),
        *(_with_step(best[i]) for best in comparison.scores.values()),
        "–" if loss is None else number(loss),
    ]


def _with_step(best: Best | None) -> str:
    return "–" if best is None else f"{number(best.value)} @{best.step}"


def _side_by_side(mappings: Sequence[Mapping[str, str]]) -> dict[str, Values]:
    """Return the values of all mappings by key."""
    keys = dict.fromkeys(key for values in mappings for key in values)
    return {key: [values.get(key) for values in mappings] for key in keys}


def _environment(run: Run) -> dict[str, str]:
    """Return the facts that may change a run's results: machine, mesh and versions, in one flat mapping."""
    environment = run.environment
    packages = environment["packages"] if isinstance(environment.get("packages"), dict) else {}
    machine = {
        name: environment[name]
        for name in ("commit", "python", "devices", "processes", "mesh")
        if name in environment
    }
    return {name: flat(value) for name, value in {**machine, **packages}.items()}


def _short_names(directories: Sequence[Path]) -> list[str]:
    """Return the names of the directories, with as many parent folders as make them distinct."""
    paths = [directory.absolute() for directory in directories]
    for depth in range(1, max(len(path.parts) for path in paths)):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({i})" for i, path in enumerate(paths, start=1)]
