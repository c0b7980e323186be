"""One checkpoint of many, chosen by its step or as the best by a score."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.base._internal import Directory, location
from meshwright.checkpoints import _directory
from meshwright.checkpoints._format._read import NativeSource
from meshwright.checkpoints._of_run import checkpoints_of, settings_at
from meshwright.checkpoints._scores import Mode, kept_by, mode_of, saved_scores, score_and_mode
from meshwright.errors import CheckpointError, UsageError, did_you_mean, listed
from meshwright.processes._internal import on_lead

log = logging.getLogger("meshwright")

_MOST = 20
"""The most steps that an error lists."""


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
        found = (
            "has no complete checkpoint in Meshwright's format" if directory.is_dir() else "does not exist"
        )
        raise CheckpointError(f"{directory} {found}. Expected a run or a directory of checkpoints.")
    return directory, steps


def _best(path: str, score: str | None, mode: Mode | None) -> tuple[str, int]:
    """Return the directory of checkpoints, and the step of the best; raises as `open_best` does."""
    if mode not in (None, "min", "max"):
        raise UsageError(f"mode={mode!r}: expected 'min' or 'max', or None to find out.")
    directory, steps = _steps(path)
    saved, settings = saved_scores(directory), settings_at(path)
    there = _directory.complete_steps(directory)  # a run that trains may have removed some meanwhile
    if unread := [str(step) for step in steps if step in there and step not in saved]:
        said = "the best checkpoint in %s is one of the others: of step %s the scores cannot be read"
        log.warning(said, directory, listed(unread, _MOST))
    chosen = kept_by(settings)
    name = score or _only(chosen, saved, path)
    found = {step: of[name] for step, of in saved.items() if not math.isnan(of.get(name, math.nan))}
    if not found:
        raise _no_score(name, chosen, saved, directory)
    better = mode or mode_of(name, settings)
    if better is None:
        raise UsageError(
            f"nothing tells whether lower or higher values of {name!r} are better.\n"
            f"  Say it: mode='min' or mode='max', or 'best:{name}:min', or --best {name}:min."
        )
    sign = 1 if better == "max" else -1
    return str(directory), max(found, key=lambda step: (sign * found[step], step))


def _only(chosen: Mapping[str, Mode], saved: Mapping[int, Mapping[str, Any]], path: str) -> str:
    """Return the one score by which the run keeps its best checkpoint."""
    if len(chosen) == 1:
        return next(iter(chosen))
    why = f"keeps its best by several scores, {_shown(chosen)}" if chosen else "keeps none by a score"
    names = _names(saved)
    raise UsageError(
        f"which checkpoint of {path} is the best? The run {why}.\n"
        f"  {f'Name a score: {names}.' if names else 'No scores are saved: evaluate when you save.'}"
    )


def _no_score(
    name: str, chosen: Mapping[str, Mode], saved: Mapping[int, Mapping[str, Any]], directory: Directory
) -> CheckpointError:
    names = {score for of in saved.values() for score in of}
    hint = " that is a number: all are NaN." if name in names else f".{did_you_mean(name, names)}"
    by = f"\n  The run keeps its best checkpoints by {_shown(chosen)}." if chosen else ""
    return CheckpointError(
        f"no checkpoint in {directory} has a score {name!r}{hint}\n"
        f"  Scores of its checkpoints: {_names(saved) or 'none'}.{by}\n"
        "  A checkpoint is saved with the scores of its own step, if that is evaluated."
    )


def _shown(chosen: Mapping[str, Mode]) -> str:
    return ", ".join(f"{score} ({mode})" for score, mode in chosen.items())


def _names(saved: Mapping[int, Mapping[str, Any]]) -> str:
    return ", ".join(sorted({name for of in saved.values() for name in of}))
