"""The choice of one checkpoint of many, by its step or as the best by a score.

The scores are those that were saved with the checkpoints. The settings of the run say which of them is meant
and whether lower or higher values are better. Two files of a run directory, both written by `engine`, are
read:

    experiment.txt      the settings, one a line
    environment.json    the directory of the checkpoints, if it is not the folder `checkpoints`
"""

import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from meshwright.base._internal import Directory, description, join, location, parse_object, read_text
from meshwright.checkpoints import _directory
from meshwright.checkpoints._format._manifest import read_manifest
from meshwright.checkpoints._format._read import NativeSource
from meshwright.checkpoints._scores import Mode, kept_by, mode_of, score_and_mode
from meshwright.errors import CheckpointError, InputError, MeshwrightError, UsageError, did_you_mean, listed
from meshwright.processes._internal import Scores, on_lead

log = logging.getLogger("meshwright")

_MOST = 20
"""The most steps that an error lists."""


def checkpoints_of(path: str) -> str:
    """Return the directory of checkpoints of the run at `path`; `path` itself, if no run can be read there.

    Example:
      >>> mw.checkpoints._internal.checkpoints_of("/tmp/exported")
      '/tmp/exported'
    """
    try:
        if _read(join(path, "experiment.txt")) is None:
            return path
    except InputError:
        # The file exists, and its content is not needed.
        pass
    except MeshwrightError:
        # The store does not answer. Opening the checkpoints will raise the same error.
        return path
    file = join(path, "environment.json")
    try:
        elsewhere = parse_object(_read(file) or "{}").get("checkpoints")
        if not isinstance(elsewhere, str | None) or "\0" in (elsewhere or ""):
            raise ValueError("it names no place")
    except (ValueError, InputError) as error:
        raise InputError(f"{file}, which says where the checkpoints are, is damaged: {error}.") from None
    return elsewhere or join(path, "checkpoints")


def settings_at(path: str) -> dict[str, str]:
    """Return the settings of a run by dotted path; {} if no run can be read.

    Example:
      >>> mw.checkpoints._internal.settings_at("/tmp/exported")
      {}
    """
    try:
        directory = location(path)
        run = directory.parent if directory.name == "checkpoints" else directory
        return description.values(_read(str(run / "experiment.txt")) or "")
    except MeshwrightError:
        return {}


def _read(file: str) -> str | None:
    """Return the content of a file; None if it does not exist."""
    try:
        return read_text(file)
    except OSError:
        return None


def saved_scores(directory: Directory, cached: Mapping[int, Scores] | None = None) -> dict[int, Scores]:
    """Return the scores of each complete checkpoint that can be read; `cached` ones are not read again."""
    cached, scores = cached or {}, {}
    for step in _directory.complete_steps(directory):
        with suppress(CheckpointError):
            path = _directory.step_path(directory, step)
            scores[step] = cached[step] if step in cached else read_manifest(path).scores
    return scores


def open_best(
    path: str | Path | Directory, score: str | None = None, mode: Mode | None = None
) -> NativeSource:
    """Open the checkpoint with the best score; if scores are equal, the newest. Collective.

    Args:
      path: A run directory, of an `Experiment` or a `Trainer`, or a directory of checkpoints; local or in a
        store.
      score: The name of the score, such as `test/loss`. None stands for the score by which the run keeps its
        best checkpoint, if its settings are there to be read.
      mode: "min" if lower scores are better, "max" if higher ones are. None takes it from the run's settings
        or, where these do not mention the score, from its name: a loss is to be low, an accuracy high.

    Raises:
      CheckpointError: No checkpoint has this score as a number.
      UsageError: Nothing says which score is meant, or which of its values are better.

    Example:
      >>> with mw.Checkpoints("run") as checkpoints:
      ...     for step, loss in ((100, 0.1), (200, 0.3)):
      ...         checkpoints.save(step, {"w": jnp.ones(3)}, {"scores": {"test/loss": loss}})
      >>> mw.checkpoints.open_best("run", "test/loss").step
      100
    """
    where, step = on_lead(lambda: _best(str(path), score, mode))
    return NativeSource(_directory.step_path(location(where), step))


def chosen_step(path: str, checkpoint: int | str) -> int:
    """Return the step of a checkpoint that is asked for. For one process to call.

    Example:
      >>> with mw.Checkpoints("run") as checkpoints:
      ...     for step, loss in ((100, 0.1), (200, 0.3)):
      ...         checkpoints.save(step, {"w": jnp.ones(3)}, {"scores": {"test/loss": loss}})
      >>> mw.checkpoints._internal.chosen_step("run", "best:test/loss")
      100
    """
    if isinstance(checkpoint, str) and checkpoint.partition(":")[0] == "best":
        score, mode = score_and_mode(checkpoint.removeprefix("best").removeprefix(":"))
        return _best(path, score or None, mode)[1]
    if checkpoint != "newest" and (isinstance(checkpoint, bool) or not isinstance(checkpoint, int)):
        raise UsageError(
            f"checkpoint={checkpoint!r}: expected a step, 'newest', 'best', or 'best:SCORE', such as "
            "'best:test/loss'."
        )
    directory, steps = _steps(path)
    if checkpoint == "newest":
        return steps[-1]
    if checkpoint in steps:
        return checkpoint
    close = min(steps, key=lambda step: (abs(step - checkpoint), -step))
    raise CheckpointError(
        f"there is no checkpoint of step {checkpoint} in {directory}. The nearest is of step {close}.\n"
        f"  There are: {listed(map(str, steps), _MOST)}."
    )


def _steps(path: str) -> tuple[Directory, list[int]]:
    """Return the directory of checkpoints at `path`, and its complete steps, at least one."""
    directory = location(checkpoints_of(path))
    steps = _directory.complete_steps(directory)
    if not steps:
        problem = (
            "has no complete checkpoint in Meshwright's format" if directory.is_dir() else "does not exist"
        )
        raise CheckpointError(f"{directory} {problem}. Expected a run or a directory of checkpoints.")
    return directory, steps


def _best(path: str, score: str | None, mode: Mode | None) -> tuple[str, int]:
    """Return the directory of checkpoints, and the step of the best; raises as `open_best` does."""
    if mode not in (None, "min", "max"):
        raise UsageError(f"mode={mode!r}: expected 'min' or 'max', or None to find out.")
    directory, steps = _steps(path)
    saved, settings = saved_scores(directory), settings_at(path)
    # A run that is training may have removed steps since they were listed.
    remaining = _directory.complete_steps(directory)
    if unread := [str(step) for step in steps if step in remaining and step not in saved]:
        message = "the best checkpoint in %s is one of the others: of step %s the scores cannot be read"
        log.warning(message, directory, listed(unread, _MOST))
    modes = kept_by(settings)
    name = score or _only(modes, saved, path)
    values = {
        step: scores[name] for step, scores in saved.items() if not math.isnan(scores.get(name, math.nan))
    }
    if not values:
        raise _no_score(name, modes, saved, directory)
    better = mode or mode_of(name, settings)
    if better is None:
        raise UsageError(
            f"nothing tells whether lower or higher values of {name!r} are better.\n"
            f"  Say it: mode='min' or mode='max', or 'best:{name}:min', or --best {name}:min."
        )
    sign = 1 if better == "max" else -1
    return str(directory), max(values, key=lambda step: (sign * values[step], step))


def _only(modes: Mapping[str, Mode], saved: Mapping[int, Mapping[str, Any]], path: str) -> str:
    """Return the one score by which the run keeps its best checkpoint."""
    # A run that keeps checkpoints by one score means that one.
    if len(modes) == 1:
        return next(iter(modes))
    why = f"keeps its best by several scores, {_as_text(modes)}" if modes else "keeps none by a score"
    names = _names(saved)
    raise UsageError(
        f"which checkpoint of {path} is the best? The run {why}.\n"
        f"  {f'Name a score: {names}.' if names else 'No scores are saved: evaluate when you save.'}"
    )


def _no_score(
    name: str, modes: Mapping[str, Mode], saved: Mapping[int, Mapping[str, Any]], directory: Directory
) -> CheckpointError:
    names = {score for scores in saved.values() for score in scores}
    hint = " that is a number: all are NaN." if name in names else f".{did_you_mean(name, names)}"
    policy = f"\n  The run keeps its best checkpoints by {_as_text(modes)}." if modes else ""
    return CheckpointError(
        f"no checkpoint in {directory} has a score {name!r}{hint}\n"
        f"  Scores of its checkpoints: {_names(saved) or 'none'}.{policy}\n"
        "  A checkpoint is saved with the scores of its own step, if that is evaluated."
    )


def _as_text(modes: Mapping[str, Mode]) -> str:
    return ", ".join(f"{score} ({mode})" for score, mode in modes.items())


def _names(saved: Mapping[int, Mapping[str, Any]]) -> str:
    return ", ".join(sorted({name for scores in saved.values() for name in scores}))
