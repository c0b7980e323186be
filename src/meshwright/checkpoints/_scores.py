"""Scores of checkpoints: their names, and whether lower or higher values are better.

The settings of a run say which scores matter to it. This module loads no JAX, for which
the list of runs does not wait.
"""

from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any, Literal

Mode = Literal["min", "max"]
"""The values of a score that are better: the lower ones (min) or the higher ones (max)."""

_LOWER = {"loss", "perplexity", "error", "nll", "bpc", "bpb", "mse", "mae", "rmse", "wer", "cer", "fid"}
_HIGHER = {"accuracy", "acc", "f1", "precision", "recall", "auc", "bleu", "rouge", "map", "match", "r2"}
"""Words in the names of scores of which lower, or higher, values are better."""
_MODES: Mapping[str | None, Mode] = {"'min'": "min", "'max'": "max"}
_KEEPS = "save.keep"
"""Beginning of the settings that say which checkpoints are kept."""


def score_and_mode(text: str) -> tuple[str, Mode | None]:
    """Return the name and the mode in `test/distance:min`; the mode is None where the text has none.

    Example:
      >>> mw.checkpoints._internal.score_and_mode("test/distance:min")
      ('test/distance', 'min')
    """
    score, _, end = text.rpartition(":")
    return (score, end) if end == "min" or end == "max" else (text, None)


def numbers(scores: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores that are numbers; an evaluation may also return texts and images for reports."""
    return {name: float(x) for name, x in scores.items() if isinstance(x, Real) or hasattr(x, "dtype")}


def kept_by(settings: Mapping[str, str]) -> dict[str, Mode]:
    """Return the scores by which a run keeps its best checkpoints, and which values of them are best.

    Example:
      >>> mw.checkpoints._internal.kept_by({"save.keep.metric": "'test/loss'", "save.keep.mode": "'min'"})
      {'test/loss': 'min'}
    """
    return {score: mode for path, score, mode in _mentioned(settings) if path.startswith(_KEEPS)}


def mode_of(name: str, settings: Mapping[str, str]) -> Mode | None:
    """Return whether lower or higher values of a score are better; None if nothing tells.

    Example:
      >>> mw.checkpoints._internal.mode_of("test/accuracy", {})
      'max'
    """
    modes = (mode for _, score, mode in _mentioned(settings) if score == name)
    if (mode := next(modes, None)) is not None:
        return mode
    last_part = name.rpartition("/")[2].lower()
    words = {last_part, *last_part.split("_")}
    return "min" if words & _LOWER else "max" if words & _HIGHER else None


def _mentioned(settings: Mapping[str, str]) -> Iterator[tuple[str, str, Mode]]:
    """Yield the path of each setting that names a score, the score, and which of its values are best."""
    for path, value in settings.items():
        beside = path.removesuffix("metric")
        # Where a policy reads TensorBoard's files, its score is not among those of checkpoints.
        is_policy = path.endswith(".metric") and settings.get(f"{beside}events") in (None, "None")
        mode = settings.get(f"{beside}mode") if is_policy else None
        if mode in _MODES:
            yield path, value[1:-1], _MODES[mode]
