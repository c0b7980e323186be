"""The contents of a run directory, as values. Missing and damaged files are listed, and never an error."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from meshwright.base._internal import description, documented, local_path, parse_object, read_file
from meshwright.checkpoints._internal import mode_of
from meshwright.errors import InputError
from meshwright.observe._internal import salvage_jsonl
from meshwright.processes._internal import is_locked
from meshwright.report._history import (
    Attempt,
    Best,
    History,
    Series,
    best_of,
    evaluators_of,
    history_of,
    scores_of,
)
from meshwright.report._ledger import LEDGER, Ledger, read_ledger
from meshwright.report._records import (
    SPIKES,
    Back,
    Ending,
    Incident,
    Samples,
    Spike,
    ending_of,
    incidents_of,
    samples_in,
    spikes_in,
    times_back,
)

if TYPE_CHECKING:
    from meshwright.checkpoints._internal import Contents

T = TypeVar("T")

_BEGAN_FROM = "began_from.txt"
_MOST_DAMAGE = 3
"""Largest number of unreadable lines of metrics that are listed."""


@documented
@dataclass(frozen=True)
class Run:
    """The contents of a run's files: state, settings, curves, scores, checkpoints, warnings."""

    directory: Path
    """Directory that the files were read from."""
    location: str
    """The run's directory, or its URL if `directory` is a copy."""
    ending: Ending
    """State of the run, and its last message."""
    description: str
    """All settings, one `path = value` per line, from `experiment.txt`."""
    function: str | None
    """The function that made the experiment, as `module:function`; None if no command called one."""
    typed: Mapping[str, str]
    """The settings that a command was given, and the function's defaults for others; {} without a command."""
    environment: Mapping[str, Any]
    """Machine, mesh, versions and command, from `environment.json`."""
    began_from: Sequence[str]
    """The checkpoints that the first state was made from."""
    parameters: str
    """Table of the parameters and the other arrays of the state, from `state.txt`."""
    history: History
    """The run's reports, as curves and attempts."""
    ledger: Ledger | None
    """The seconds of all attempts by their use, from `ledger.json`; None if the run has no such file."""
    checkpoints_path: str | None
    """Directory or URL of the checkpoints; None if it is not known."""
    settings_from: Mapping[int, str]
    """The settings of each attempt, by the step that the attempt continued from."""
    backs: Sequence[Back]
    """The times at which the run went back to an earlier step."""
    spikes: Sequence[Spike]
    """The loss spikes before which the run went back, with the batches that were left out."""
    incidents: Sequence[Incident]
    """Warnings and errors in the logs, in the order of time."""
    outputs: Mapping[str, Sequence[str]]
    """Names of the files with the model's output for each example, by evaluation."""
    samples: Samples | None
    """The newest samples of the model; None if it made none."""
    missing: Sequence[str]
    """Names of the files that every run has and this one does not."""
    damage: Sequence[str]
    """Descriptions of the files that exist and cannot be read."""

    @cached_property
    def checkpoints(self) -> "Contents | None":
        """The checkpoints that exist; None if their directory cannot be read."""
        from meshwright.checkpoints._internal import (
            contents,  # loads JAX, for which lists of runs do not wait
        )

        path = self.checkpoints_path
        return contents(path) if path and Path(path).is_dir() else None

    @cached_property
    def settings(self) -> dict[str, str]:
        """The settings by dotted path."""
        return description.values(self.description)

    @property
    def series(self) -> Mapping[str, Series]:
        """Each reported number over the steps."""
        return self.history.series

    @property
    def sizes(self) -> Mapping[str, float]:
        """The numbers that were reported only once, such as `num_params`."""
        return self.history.sizes

    @property
    def attempts(self) -> Sequence[Attempt]:
        """The run's attempts, in the order of time."""
        return self.history.attempts

    @cached_property
    def evaluations(self) -> list[str]:
        """The names of the evaluations."""
        return evaluators_of(self.series, self.settings)

    @cached_property
    def scores(self) -> dict[str, Series]:
        """Each score of an evaluation over the steps, by name: `test/accuracy`."""
        return scores_of(self.series, self.evaluations)

    @cached_property
    def best(self) -> dict[str, Best]:
        """The best value of each score for which lower or higher is known to be better."""
        bests = {name: best_of(points, mode_of(name, self.settings)) for name, points in self.scores.items()}
        return {name: best for name, best in bests.items() if best is not None}

    @cached_property
    def chosen(self) -> list[str]:
        """The names of the scores that the user chose, to keep checkpoints by or to end the run."""
        names = [value.strip("'") for path, value in self.settings.items() if path.endswith(".metric")]
        return [name for name in dict.fromkeys(names) if name in self.scores]

    @property
    def main_score(self) -> str | None:
        """The name of the most important score: one that the user chose, else the first."""
        return next((name for name in (*self.chosen, *self.best) if name in self.best), None)

    @property
    def step(self) -> int:
        """The last step that was reported."""
        return self.history.step

    @property
    def max_steps(self) -> int | None:
        """The number of steps in the settings; None if it is not known."""
        text = self.settings.get("max_steps", "")
        return int(text) if text.isdecimal() and len(text) < 20 else None

    @property
    def seconds(self) -> float:
        """The training time, from the first report to the last of each attempt, summed."""
        return sum(attempt.seconds for attempt in self.attempts)


def is_run(directory: Path) -> bool:
    """Return whether a directory is that of a run, in whatever state."""
    return any((directory / name).is_file() for name in ("experiment.txt", "metrics.jsonl"))


def read_run(directory: str | Path, location: str | None = None) -> Run:
    """Read the files of a run that has ended or is still going.

    Args:
      directory: The run directory.
      location: The run's URL, if `directory` is a copy.

    Raises:
      InputError: It is not a run directory, or it cannot be read.

    Example:
      >>> mw.observe.jsonl("metrics.jsonl")(10, {"loss": 0.5})
      >>> run = mw.report.read_run(".")
      >>> run.step, run.series["loss"].last
      (10, 0.5)
    """
    try:
        return _run_in(local_path(directory), location)
    except OSError as error:
        raise InputError(
            f"{location or directory} cannot be read: {error}.\n  Check its permissions and its disk."
        ) from None


def _run_in(directory: Path, location: str | None) -> Run:
    if not is_run(directory):
        raise InputError(
            f"{location or directory} is not a run: it has neither experiment.txt nor metrics.jsonl.\n"
            "  Give the directory of a run. `meshwright runs DIR` lists the runs below a directory."
        )
    files = _Files(directory)
    settings = files.read("experiment.txt", _text) or ""
    function, typed = _typed_in(files)
    environment = files.read("environment.json", _json_object) or {}
    damage: list[str] = []
    read_history = lambda path: history_of(salvage_jsonl(path, damage.append))  # noqa: E731
    history = files.read("metrics.jsonl", read_history) or history_of(())
    # A damaged file may have thousands of such lines.
    files.damage += damage[:_MOST_DAMAGE]
    path = str(environment.get("checkpoints") or directory / "checkpoints") if settings else None
    return Run(
        directory=directory,
        location=location or str(directory),
        ending=_ending(files, path, history),
        description=settings,
        function=function,
        typed=typed,
        environment=environment,
        began_from=(files.read(_BEGAN_FROM, _text) or "").splitlines() if _BEGAN_FROM in files else [],
        parameters=files.read("state.txt", _text) or "",
        history=history,
        ledger=files.read(LEDGER, read_ledger) if LEDGER in files else None,
        checkpoints_path=path,
        settings_from=_settings_from(directory / "attempts"),
        backs=times_back(directory),
        spikes=(files.read(SPIKES, spikes_in) if SPIKES in files else None) or [],
        incidents=files.read("logs", incidents_of) or [],
        outputs=_outputs(directory / "outputs"),
        samples=files.read("outputs", lambda _: samples_in(directory))
        if (directory / "outputs/samples").is_dir()
        else None,
        missing=files.missing,
        damage=files.damage,
    )


def _typed_in(files: "_Files") -> tuple[str | None, dict[str, str]]:
    """Return the function and settings in `experiment.json`, which only runs of commands have."""
    origin = (files.read("experiment.json", _json_object) if "experiment.json" in files else None) or {}
    typed: dict[str, str] = {}
    for source in (origin.get("defaults"), origin.get("settings")):
        items = source.items() if isinstance(source, dict) else ()
        texts = {name: value for name, value in items if isinstance(value, str)}
        # Settings that were typed take the place of defaults.
        typed = texts | {name: value for name, value in typed.items() if name not in texts}
    typed.pop("workdir", None)
    function = origin.get("target")
    return function if isinstance(function, str) else None, typed


def _settings_from(folder: Path) -> dict[int, str]:
    """Return the stored settings of attempts, by the step that each continued from."""
    settings: dict[int, str] = {}
    for file in sorted(folder.glob("step_*.txt")) if folder.is_dir() else ():
        number = file.stem.removeprefix("step_")
        if number.isdecimal() and len(number) < 20 and file.is_file():
            with contextlib.suppress(OSError, ValueError):
                settings[int(number)] = _text(file)
    return settings


class _Files:
    """A reader of a run's files that records which are missing or damaged."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.missing: list[str] = []
        self.damage: list[str] = []

    def __contains__(self, name: str) -> bool:
        return (self.directory / name).is_file()

    def read(self, name: str, reader: Callable[[Path], T]) -> T | None:
        """Return the result of `reader` for a file; None if the file is missing or cannot be read."""
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
    # A run in rounds does not hold its checkpoints' lock.
    if is_locked(files.directory / ".run.lock"):
        return Ending("running")
    # A store has no locks: the time since the last report tells whether the run goes on.
    silent = None if history.last is None else time.time() - history.last.get("time", 0.0)
    return ending_of(None, checkpoints, silent)


def _text(path: Path) -> str:
    return read_file(path).decode()


def _json_object(path: Path) -> dict[str, Any]:
    return parse_object(read_file(path))


def _outputs(directory: Path) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for file in sorted(directory.glob("*/step_*.jsonl")):
        files.setdefault(file.parent.name, []).append(file.name)
    return files
