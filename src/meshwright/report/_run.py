"""What the files of a run directory hold, as values. What is missing or damaged is named, and never fatal."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from meshwright import description
from meshwright.documents import parse_object, read_file
from meshwright.errors import InputError
from meshwright.formats import Contents, contents
from meshwright.metrics import salvage_jsonl
from meshwright.process import is_held
from meshwright.report._back import Back, times_back
from meshwright.report._ending import Ending, Incident, ending_of, incidents_of
from meshwright.report._history import (
    Attempt,
    Best,
    History,
    Series,
    best_of,
    evaluators_of,
    history_of,
    mode_of,
    scores_of,
)
from meshwright.storage import local_path

T = TypeVar("T")

_MOST_DAMAGE = 3
"""Lines of metrics that cannot be read are named up to this many."""


@dataclass(frozen=True)
class Run:
    """A run, as its files tell of it."""

    directory: Path
    """Where its files were read."""
    place: str
    """Where it is: that directory, or the address of which that is a copy."""
    ending: Ending
    description: str
    """As in `experiment.txt`."""
    environment: Mapping[str, Any]
    parameters: str
    """The table of them, as in `state.txt`."""
    history: History
    """What it reported."""
    checkpoints: Contents | None
    """None where they are in no directory that can be looked into."""
    checkpoints_path: str | None
    settings_from: Mapping[int, str]
    """The descriptions of its attempts, by the step that each went on from."""
    backs: Sequence[Back]
    """When it went back to an earlier step."""
    incidents: Sequence[Incident]
    outputs: Mapping[str, Sequence[str]]
    """The files in which evaluations wrote what the model made of each example, by evaluation."""
    missing: Sequence[str]
    """The names of the files that are not there, of those that every run has."""
    damage: Sequence[str]
    """What is wrong with files that are there."""

    @cached_property
    def settings(self) -> dict[str, str]:
        """The description by dotted path."""
        return description.values(self.description)

    @property
    def series(self) -> Mapping[str, Series]:
        """Each reported number over the steps."""
        return self.history.series

    @property
    def sizes(self) -> Mapping[str, float]:
        """What was reported once, such as `num_params`."""
        return self.history.sizes

    @property
    def attempts(self) -> Sequence[Attempt]:
        """Its processes, one after the other."""
        return self.history.attempts

    @cached_property
    def evaluations(self) -> list[str]:
        """The names of its evaluations."""
        return evaluators_of(self.series, self.settings)

    @cached_property
    def scores(self) -> dict[str, Series]:
        """What its evaluations found."""
        return scores_of(self.series, self.evaluations)

    @cached_property
    def best(self) -> dict[str, Best]:
        """The best of each score, of which it is known what is better."""
        found = {name: best_of(points, mode_of(name, self.settings)) for name, points in self.scores.items()}
        return {name: best for name, best in found.items() if best is not None}

    @property
    def main_score(self) -> str | None:
        """The score that it is best by: one that checkpoints are kept for, else the first."""
        told = [value.strip("'") for path, value in self.settings.items() if path.endswith(".metric")]
        return next((name for name in (*told, *self.best) if name in self.best), None)

    @property
    def step(self) -> int:
        """The last step that was reported."""
        return self.history.step

    @property
    def max_steps(self) -> int | None:
        """How many steps were asked for."""
        told = self.settings.get("max_steps", "")
        return int(told) if told.isdecimal() and len(told) < 20 else None

    @property
    def seconds(self) -> float:
        """How long its processes trained, from the first report of each to its last."""
        return sum(attempt.seconds for attempt in self.attempts)


def is_run(directory: Path) -> bool:
    """Return whether this is the directory of a run, whatever became of it."""
    return any((directory / name).is_file() for name in ("experiment.txt", "metrics.jsonl"))


def read_run(directory: str | Path, place: str | None = None) -> Run:
    """Read what the run in `directory` left, whether or not it has ended.

    Args:
      place: the address of which it is a copy, if it is one.

    Raises:
      InputError: it is no run directory, or one that may not be looked into.
    """
    try:
        return _run_in(local_path(directory), place)
    except OSError as error:
        raise InputError(
            f"{place or directory} cannot be read: {error}.\n  Mend its permissions, or its disk."
        ) from None


def _run_in(directory: Path, place: str | None) -> Run:
    if not is_run(directory):
        raise InputError(
            f"{place or directory} is no run: it has neither experiment.txt nor metrics.jsonl.\n"
            "  Give the directory of a run; `meshwright runs` lists those below a directory."
        )
    files = _Files(directory)
    told = files.read("experiment.txt", _text) or ""
    environment = files.read("environment.json", _json_object) or {}
    damage: list[str] = []
    read_history = lambda path: history_of(salvage_jsonl(path, damage.append))  # noqa: E731
    history = files.read("metrics.jsonl", read_history) or history_of(())
    files.damage += damage[:_MOST_DAMAGE]
    path = str(environment.get("checkpoints") or directory / "checkpoints") if told else None
    return Run(
        directory=directory,
        place=place or str(directory),
        ending=_ending(files, path, history),
        description=told,
        environment=environment,
        parameters=files.read("state.txt", _text) or "",
        history=history,
        checkpoints=contents(path) if path and Path(path).is_dir() else None,
        checkpoints_path=path,
        settings_from=_settings_from(directory / "attempts"),
        backs=times_back(directory),
        incidents=files.read("logs", incidents_of) or [],
        outputs=_outputs(directory / "outputs"),
        missing=files.missing,
        damage=files.damage,
    )


def _settings_from(folder: Path) -> dict[int, str]:
    """Return what is kept of the settings of attempts, by the step that each went on from."""
    found: dict[int, str] = {}
    for file in sorted(folder.glob("step_*.txt")) if folder.is_dir() else ():
        number = file.stem.removeprefix("step_")
        if number.isdecimal() and len(number) < 20 and file.is_file():
            with contextlib.suppress(OSError, ValueError):
                found[int(number)] = _text(file)
    return found


class _Files:
    """Reads files of a run, and remembers which are missing or damaged."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.missing: list[str] = []
        self.damage: list[str] = []

    def __contains__(self, name: str) -> bool:
        return (self.directory / name).is_file()

    def read(self, name: str, reader: Callable[[Path], T]) -> T | None:
        """Return what `reader` makes of the file; None where that cannot be done."""
        path = self.directory / name
        if not path.exists():
            self.missing.append(name)
            return None
        try:
            return reader(path)
        except (OSError, ValueError) as error:
            self.damage.append(f"{path} cannot be read: {error}")
            return None


def _ending(files: _Files, checkpoints: str | None, history: History) -> Ending:
    if "outcome.json" in files:
        outcome = files.read("outcome.json", _json_object)
        return Ending("unknown") if outcome is None else ending_of(outcome, checkpoints, None)
    if is_held(files.directory / ".run.lock"):  # in rounds a run holds no checkpoints of its own
        return Ending("running")
    silent = None if history.last is None else time.time() - history.last.get("time", 0.0)
    return ending_of(None, checkpoints, silent)


def _text(path: Path) -> str:
    return read_file(path).decode()


def _json_object(path: Path) -> dict[str, Any]:
    return parse_object(read_file(path))


def _outputs(directory: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in sorted(directory.glob("*/step_*.jsonl")):
        found.setdefault(file.parent.name, []).append(file.name)
    return found
