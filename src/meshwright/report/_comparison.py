"""A comparison of runs: their differing settings and environments, and their scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.docstrings import documented
from meshwright.errors import UsageError
from meshwright.metrics import json_number
from meshwright.report._run import Run
from meshwright.report._summary import document
from meshwright.report._words import facts_of, flat, number_or_dash, said
from meshwright.tables import wrapped

_ALWAYS_DIFFERENT = ("workdir",)
BEST = ", best"
"""Ending of the names of rows that hold best values instead of last ones."""


@documented
@dataclass(frozen=True)
class Comparison:
    """Two or more runs and their differences. Lists have one entry per run, None if it has no value."""

    runs: Sequence[Run]
    """The runs that are compared."""
    names: Sequence[str]
    """Short, distinct names of the runs."""
    settings: Mapping[str, Sequence[str | None]]
    """The settings that differ, by dotted path."""
    environment: Mapping[str, Sequence[str | None]]
    """The facts about machine, mesh and versions that differ, by name."""
    scores: Mapping[str, Sequence[float | None]]
    """The last and the best value of the loss and of each score, by name."""

    def named(self) -> list[tuple[str, Run]]:
        """Return the runs with their names."""
        return list(zip(self.names, self.runs, strict=True))


def compare(runs: Sequence[Run]) -> Comparison:
    """Return the comparison of two or more runs.

    Args:
      runs: the runs, as `read_run` returns them.

    Raises:
      UsageError: there are fewer than two runs.
    """
    if len(runs) < 2:
        raise UsageError(f"a comparison needs two runs or more; found {len(runs)}.")
    return Comparison(
        runs,
        _short_names([Path(run.place) for run in runs]),
        _different([run.settings for run in runs], _ALWAYS_DIFFERENT),
        _different([_environment(run) for run in runs]),
        _scores(runs),
    )


def comparison_text(found: Comparison, *, width: int | None = None) -> str:
    """Return a comparison as text: the runs, the differing settings and environments, the scores.

    Args:
      found: the comparison.
      width: longest line, in characters; longer ones are wrapped. None wraps nothing.
    """
    lines = [f"{name}: {run.ending.state}, {facts_of(run)[0]}" for name, run in found.named()]
    for title, rows in (("configuration", found.settings), ("environment", found.environment)):
        lines += ["", f"{title}: {'' if rows else 'the same'}".rstrip()]
        lines += [f"  {path}: {' | '.join(map(said, values))}" for path, values in rows.items()]
    lines += ["", "scores:"]
    lines += [f"  {name}: {' | '.join(map(number_or_dash, values))}" for name, values in found.scores.items()]
    return "\n".join(wrapped(line, width=width, indent="    ") for line in lines)


def comparison_document(found: Comparison) -> dict[str, Any]:
    """Return a comparison as a dict that can be written as strict JSON.

    Args:
      found: the comparison. Values that are not finite become text.
    """
    return {
        "runs": [document(run) for run in found.runs],
        "settings": {path: list(values) for path, values in found.settings.items()},
        "environment": {name: list(values) for name, values in found.environment.items()},
        "scores": {
            name: [None if value is None else json_number(value) for value in values]
            for name, values in found.scores.items()
        },
    }


def _scores(runs: Sequence[Run]) -> dict[str, Sequence[float | None]]:
    """Return two rows for the loss and for each score: the runs' last values, and their best."""
    found: dict[str, Sequence[float | None]] = {}
    for name in ("loss", *dict.fromkeys(name for run in runs for name in run.scores)):
        found[name] = [run.series[name].last if name in run.series else None for run in runs]
        found[f"{name}{BEST}"] = [run.best[name].value if name in run.best else None for run in runs]
    return {name: values for name, values in found.items() if any(value is not None for value in values)}


def _different(each: Sequence[Mapping[str, str]], but: Sequence[str] = ()) -> dict[str, Sequence[str | None]]:
    """Return the values of the keys at which the mappings differ."""
    keys = dict.fromkeys(key for values in each for key in values if key not in but)
    found = {key: [values.get(key) for values in each] for key in keys}
    return {key: values for key, values in found.items() if len(set(values)) > 1}


def _environment(run: Run) -> dict[str, str]:
    """Return the facts that may change a run's results: machine, mesh and versions, in one flat mapping."""
    told = run.environment
    packages = told["packages"] if isinstance(told.get("packages"), dict) else {}
    here = {name: told[name] for name in ("commit", "python", "devices", "processes", "mesh") if name in told}
    return {name: flat(value) for name, value in {**here, **packages}.items()}


def _short_names(directories: Sequence[Path]) -> list[str]:
    """Return the names of the directories, with as many parent folders as make them distinct."""
    paths = [directory.absolute() for directory in directories]
    for depth in range(1, max(len(path.parts) for path in paths)):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({i})" for i, path in enumerate(paths, start=1)]
