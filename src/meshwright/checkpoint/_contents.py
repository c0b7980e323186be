"""What there is in a directory of checkpoints."""

from dataclasses import dataclass

from meshwright.checkpoint._directory import aside, complete_steps, step_path
from meshwright.checkpoint._format import read_manifest
from meshwright.checkpoint._object_path import Directory, location
from meshwright.checkpoint._permission import telling_unreadable
from meshwright.checkpoint._pins import is_pinned
from meshwright.errors import CheckpointError


@dataclass(frozen=True)
class Listed:
    """One checkpoint."""

    step: int
    path: str
    nbytes: int | None
    """What its data files take; None where its manifest cannot be read."""
    pinned: bool


@dataclass(frozen=True)
class Contents:
    """A directory of checkpoints."""

    checkpoints: tuple[Listed, ...]
    """The oldest first."""
    set_aside: tuple[str, ...]
    """What those are called that were found damaged and are kept for people to look at."""


@telling_unreadable()
def contents(directory: str | Directory) -> Contents:
    """Return what is in a directory of checkpoints, local or not; of their data nothing is read."""
    place = location(directory)
    listed = (_listed(step, step_path(place, step)) for step in complete_steps(place))
    return Contents(tuple(listed), tuple(aside(place)))


def _listed(step: int, path: Directory) -> Listed:
    try:
        nbytes = sum(file.nbytes for file in read_manifest(path).files)
    except CheckpointError:
        nbytes = None
    return Listed(step, str(path), nbytes, is_pinned(path))
