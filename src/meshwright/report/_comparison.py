"""A comparison of runs: their differing settings and environments, and their scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.base._internal import aligned, documented, number, wrapped
from meshwright.errors import UsageError, printable
from meshwright.observe._internal import json_number
from meshwright.report._history import Best
from meshwright.report._run import Run
from meshwright.report._summary import document
from meshwright.report._varied import Values, different, varied
from meshwright.report._words import CHOSEN, CHOSEN_MEANS, flat, said, score_title

_ALWAYS_DIFFERENT = ("workdir",)


@documented
@dataclass(frozen=True)
class Comparison:
    """Two or more runs, the best first, and their differences. Lists have one entry per run.

    The best run is that with the best value of `main_score`. Runs without a value stand last.
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
    main_score = next((run.main_score for run in runs if run.main_score), None)
    ordered = sorted(runs, key=lambda run: _rank(run.best.get(main_score or "")))
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
        names=_short_names([Path(run.place) for run in ordered]),
        settings=varied(ordered, described),
        description=described,
        environment=different(_side_by_side([_environment(run) for run in ordered])),
        losses=[run.series["loss"].last if "loss" in run.series else None for run in ordered],
        scores={name: [_best_or_last(run, name) for run in ordered] for name in names},
        chosen=chosen,
        main_score=main_score,
    )


def comparison_text(found: Comparison, *, width: int | None = None) -> str:
    """Return a comparison as text: a table of the runs, and the facts of the environment that differ."""
    heads = ["run", "state", "step", *found.settings]
    scores = [score_title(name, found.chosen) for name in found.scores]
    rows = [[*heads, *scores, "loss"], *(_text_row(found, i) for i in range(len(found.runs)))]
    numbers = range(len(heads), len(rows[0]))
    shown = [[printable(cell, keep="") for cell in row] for row in rows]
    lines = aligned(shown, right=(2, *numbers), width=width)
    lines += [f"{CHOSEN} {CHOSEN_MEANS}"] if set(found.chosen) & set(found.scores) else []
    same = "" if found.settings else "settings: the same"
    lines += ["", *filter(None, [same]), f"environment: {'' if found.environment else 'the same'}".rstrip()]
    lines += [
        wrapped(f"  {name}: {' | '.join(map(said, values))}", width=width, indent="    ")
        for name, values in found.environment.items()
    ]
    return "\n".join(lines)


def comparison_document(found: Comparison) -> dict[str, Any]:
    """Return a comparison as a dict that can be written as strict JSON."""
    return {
        "runs": [document(run) for run in found.runs],
        "settings": {name: list(values) for name, values in found.settings.items()},
        "description": {path: list(values) for path, values in found.description.items()},
        "environment": {name: list(values) for name, values in found.environment.items()},
        "losses": [None if loss is None else json_number(loss) for loss in found.losses],
        "scores": {
            name: [None if best is None else json_number(best.value) for best in each]
            for name, each in found.scores.items()
        },
        "chosen": list(found.chosen),
        "main_score": found.main_score,
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


def _text_row(found: Comparison, i: int) -> list[str]:
    run, loss = found.runs[i], found.losses[i]
    return [
        found.names[i],
        run.ending.state,
        f"{run.step}" if run.max_steps is None else f"{run.step}/{run.max_steps}",
        *(said(values[i]) for values in found.settings.values()),
        *(_with_step(best[i]) for best in found.scores.values()),
        "–" if loss is None else number(loss),
    ]


def _with_step(best: Best | None) -> str:
    return "–" if best is None else f"{number(best.value)} @{best.step}"


def _side_by_side(each: Sequence[Mapping[str, str]]) -> dict[str, Values]:
    """Return the values of all mappings by key."""
    keys = dict.fromkeys(key for values in each for key in values)
    return {key: [values.get(key) for values in each] for key in keys}


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
