"""What there is in a directory of checkpoints."""

from dataclasses import dataclass
from pathlib import Path

from meshwright.checkpoint import MANIFEST, aside, read_manifest
from meshwright.errors import CheckpointError
from meshwright.formats._open import steps_at
from meshwright.formats._pins import is_pinned
from meshwright.storage import Directory, location, telling_unreadable


@dataclass(frozen=True)
class Listed:
    """One checkpoint."""

    step: int
    path: str
    nbytes: int | None
    """What its data files take; None where that cannot be told: its manifest cannot be read, or it is another
    system's in a store."""
    pinned: bool


@dataclass(frozen=True)
class Contents:
    """A directory of checkpoints."""

    checkpoints: tuple[Listed, ...]
    """The oldest first."""
    set_aside: tuple[str, ...]
    """What those are called that were set aside, as damaged or later than where a run went back to."""
    is_ours: bool = True
    """Whether they are of our format."""


@telling_unreadable()
def contents(directory: str | Directory) -> Contents:
    """Return what is in a directory of checkpoints, local or not, whatever wrote them; no data are read.

    Where it is one checkpoint itself, or has none, the contents are empty.
    """
    place = location(directory)
    steps = steps_at(place)
    is_ours = all((path / MANIFEST).is_file() for path in steps.values())
    size_of = _native_nbytes if is_ours else _nbytes
    listed = (Listed(step, str(path), size_of(path), is_pinned(path)) for step, path in steps.items())
    return Contents(tuple(listed), tuple(aside(place)), is_ours)


def _native_nbytes(path: Directory) -> int | None:
    try:
        return sum(file.nbytes for file in read_manifest(path).files)
    except CheckpointError:
        return None


def _nbytes(path: Directory) -> int | None:
    """Return what the files of another system's checkpoint take, on a disk."""
    if not isinstance(path, Path):
        return None
    # T5's are called by what the names of their files begin with.
    files = [path, *path.rglob("*")] if path.exists() else path.parent.glob(f"{path.name}.*")
    return sum(file.stat().st_size for file in files if file.is_file())
