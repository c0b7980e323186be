"""The scores of evaluations, kept with the checkpoint of the step that was evaluated."""

from collections.abc import Mapping
from contextlib import suppress
from numbers import Real

from meshwright.checkpoint import _directory
from meshwright.checkpoint._format import read_manifest
from meshwright.checkpoint._object_path import Directory
from meshwright.checkpoint._retention import Scores
from meshwright.errors import CheckpointError


def saved_scores(directory: Directory, known: Mapping[int, Scores] | None = None) -> dict[int, Scores]:
    """Return the scores saved with each complete checkpoint that can be read; those `known` are not read."""
    known, found = known or {}, {}
    for step in _directory.complete_steps(directory):
        with suppress(CheckpointError):
            path = _directory.step_path(directory, step)
            found[step] = known[step] if step in known else read_manifest(path).scores
    return found


def numbers(scores: Scores) -> Scores:
    """Return those that are numbers: an evaluation may also give texts and images, for reports."""
    return {name: float(x) for name, x in scores.items() if isinstance(x, Real) or hasattr(x, "dtype")}
