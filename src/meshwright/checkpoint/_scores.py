"""Evaluation scores that are saved with checkpoints, and the checkpoint with the best score."""

import math
from collections.abc import Mapping
from contextlib import suppress
from numbers import Real
from typing import Literal

from meshwright import old_names
from meshwright.checkpoint import _directory
from meshwright.checkpoint._format import NativeSource, read_manifest
from meshwright.errors import CheckpointError
from meshwright.process import on_lead
from meshwright.storage import Directory, location
from meshwright.when import Scores


def saved_scores(directory: Directory, known: Mapping[int, Scores] | None = None) -> dict[int, Scores]:
    """Return the scores of each complete checkpoint that can be read; `known` ones are not read again."""
    known, found = known or {}, {}
    for step in _directory.complete_steps(directory):
        with suppress(CheckpointError):
            path = _directory.step_path(directory, step)
            found[step] = known[step] if step in known else old_names.both(read_manifest(path).scores)
    return found


def numbers(scores: Scores) -> Scores:
    """Return the scores that are numbers; an evaluation may also return texts and images for reports."""
    return {name: float(x) for name, x in scores.items() if isinstance(x, Real) or hasattr(x, "dtype")}


def open_best(directory: str | Directory, score: str, mode: Literal["min", "max"]) -> NativeSource:
    """Open the checkpoint with the best score; if scores are equal, the newest. Collective.

    Args:
      directory: A directory of checkpoints, local or in a store.
      score: The name of the score, such as `test/loss`.
      mode: "min" if lower scores are better, "max" if higher ones are.

    Raises:
      CheckpointError: No checkpoint has this score as a number.

    Example:
      >>> with mw.Checkpoints("run") as checkpoints:
      ...     for step, loss in ((100, 0.1), (200, 0.3)):
      ...         checkpoints.save(step, {"w": jnp.ones(3)}, {"scores": {"test/loss": loss}})
      >>> mw.checkpoint.open_best("run", "test/loss", "min").step
      100
    """
    place = location(directory)
    return NativeSource(_directory.step_path(place, on_lead(lambda: _best_step(place, score, mode))))


def _best_step(directory: Directory, score: str, mode: Literal["min", "max"]) -> int:
    saved = saved_scores(directory)
    found = {step: of[score] for step, of in saved.items() if not math.isnan(of.get(score, math.nan))}
    if not found:
        names = sorted({name for of in saved.values() for name in of})
        raise CheckpointError(
            f"no checkpoint in {directory} has a score {score!r}; the scores of its {len(saved)} checkpoints "
            f"are {', '.join(names) or 'none'}.\n  Evaluate before saving, and keep the best."
        )
    sign = 1 if mode == "max" else -1
    return max(found, key=lambda step: (sign * found[step], step))
