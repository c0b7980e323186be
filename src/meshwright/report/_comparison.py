"""Runs side by side: in what they differ, and what became of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.errors import UsageError
from meshwright.metrics import json_number
from meshwright.report._run import Run
from meshwright.report._summary import document
from meshwright.report._words import facts_of, flat, number_or_dash, said
from meshwright.tables import wrapped

_ALWAYS_DIFFERENT = ("workdir",)
BEST = ", best"
"""What the names of rows end with that are of the best values, not the last."""


@dataclass(frozen=True)
class Comparison:
    """Two or more runs, and what of them is not the same; each list has an entry for each run."""

    runs: Sequence[Run]
    names: Sequence[str]
    """Short ones that tell them apart."""
    settings: Mapping[str, Sequence[str | None]]
    """By dotted path, where their descriptions differ."""
    environment: Mapping[str, Sequence[str | None]]
    """By name, where their environments do."""
    scores: Mapping[str, Sequence[float | None]]
    """The last value of the loss and of each score, and the best."""

    def named(self) -> list[tuple[str, Run]]:
        """Return the runs with their names."""
        return list(zip(self.names, self.runs, strict=True))


def compare(runs: Sequence[Run]) -> Comparison:
    """Compare runs.

    Raises:
      UsageError: they are fewer than two.
    """
    if len(runs) < 2:
        raise UsageError("a comparison is of two runs or more.")
    return Comparison(
        runs,
        _short_names([Path(run.place) for run in runs]),
        _different([run.settings for run in runs], _ALWAYS_DIFFERENT),
        _different([_environment(run) for run in runs]),
        _scores(runs),
    )


def comparison_text(found: Comparison, *, width: int | None = None) -> str:
    """Return a comparison for people: the runs, what differs, the scores; in lines of at most `width`."""
    lines = [f"{name}: {run.ending.state}, {facts_of(run)[0]}" for name, run in found.named()]
    for title, rows in (("configuration", found.settings), ("environment", found.environment)):
        lines += ["", f"{title}: {'' if rows else 'the same'}".rstrip()]
        lines += [f"  {path}: {' | '.join(map(said, values))}" for path, values in rows.items()]
    lines += ["", "scores:"]
    lines += [f"  {name}: {' | '.join(map(number_or_dash, values))}" for name, values in found.scores.items()]
    return "\n".join(wrapped(line, width=width, indent="    ") for line in lines)


def comparison_document(found: Comparison) -> dict[str, Any]:
    """Return a comparison as strict JSON can hold it."""
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
    """Return the rows of the loss and of each score: the last values, and the best."""
    found: dict[str, Sequence[float | None]] = {}
    for name in ("loss", *dict.fromkeys(name for run in runs for name in run.scores)):
        found[name] = [run.series[name].last if name in run.series else None for run in runs]
        found[f"{name}{BEST}"] = [run.best[name].value if name in run.best else None for run in runs]
    return {name: values for name, values in found.items() if any(value is not None for value in values)}


def _different(each: Sequence[Mapping[str, str]], but: Sequence[str] = ()) -> dict[str, Sequence[str | None]]:
    """Return the values of those keys at which not all mappings agree."""
    keys = dict.fromkeys(key for values in each for key in values if key not in but)
    found = {key: [values.get(key) for values in each] for key in keys}
    return {key: values for key, values in found.items() if len(set(values)) > 1}


def _environment(run: Run) -> dict[str, str]:
    """Return what decides how a run goes: the machine, the mesh and the versions, in one flat mapping."""
    told = run.environment
    packages = told["packages"] if isinstance(told.get("packages"), dict) else {}
    here = {name: told[name] for name in ("commit", "python", "devices", "processes", "mesh") if name in told}
    return {name: flat(value) for name, value in {**here, **packages}.items()}


def _short_names(directories: Sequence[Path]) -> list[str]:
    """Return the directories' own names, or as much of their paths as tells them apart."""
    paths = [directory.absolute() for directory in directories]
    for depth in range(1, max(len(path.parts) for path in paths)):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({i})" for i, path in enumerate(paths, start=1)]
