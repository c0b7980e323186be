"""The best of the checkpoints that are there, by a score that was saved with them."""

import math
from typing import Literal

from meshwright.checkpoint._directory import step_path
from meshwright.checkpoint._format import NativeSource
from meshwright.checkpoint._scores import saved_scores
from meshwright.errors import CheckpointError
from meshwright.process import on_lead
from meshwright.storage import Directory, location


def open_best(directory: str | Directory, score: str, mode: Literal["min", "max"]) -> NativeSource:
    """Open the checkpoint in `directory` with the best `score`, the newest of equals. Collective.

    Raises:
      CheckpointError: None was saved with this score as a number.
    """
    place = location(directory)
    return NativeSource(step_path(place, on_lead(lambda: _best_step(place, score, mode))))


def _best_step(directory: Directory, score: str, mode: Literal["min", "max"]) -> int:
    saved = saved_scores(directory)
    found = {step: of[score] for step, of in saved.items() if not math.isnan(of.get(score, math.nan))}
    if not found:
        names = sorted({name for of in saved.values() for name in of})
        raise CheckpointError(
            f"no checkpoint in {directory} has a score {score!r}; of {len(saved)} checkpoints the scores are "
            f"{', '.join(names) or 'none'}.\n  Evaluate before saving, and keep the best."
        )
    sign = 1 if mode == "max" else -1
    return max(found, key=lambda step: (sign * found[step], step))
