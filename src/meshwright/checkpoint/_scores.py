"""The scores of evaluations, saved with the checkpoint of their step; and what is kept by them."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from numbers import Real

from meshwright.checkpoint import _directory
from meshwright.checkpoint._format import read_manifest
from meshwright.checkpoint._retention import Keep, Scores
from meshwright.errors import CheckpointError, MeshwrightError
from meshwright.storage import Directory


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


def remove_old(
    directory: Directory, scores: Callable[[], Mapping[int, Scores]], keep: Keep, *, just_saved: int
) -> None:
    """Remove the checkpoints that `keep` does not keep and that are not pinned."""
    try:
        found = scores()
        kept = keep(found) | {just_saved, max(found)}
        for step in sorted(found.keys() - kept):
            _directory.remove_step(directory, step)
    except Exception as error:
        said = f"step {just_saved} is saved, but older checkpoints could not be removed: {error}"
        raise MeshwrightError(said) from error
