"""The contents of a directory of checkpoints, of any format."""

from dataclasses import dataclass
from pathlib import Path

from meshwright.base._internal import Directory, location
from meshwright.checkpoints._directory import aside
from meshwright.checkpoints._format._manifest import MANIFEST, read_manifest
from meshwright.checkpoints._format._read import telling_unreadable
from meshwright.checkpoints._formats._open import steps_at
from meshwright.checkpoints._formats._pins import is_pinned
from meshwright.errors import CheckpointError


@dataclass(frozen=True)
class Listed:
    """A checkpoint in a directory."""

    step: int
    """The step that was saved."""
    path: str
    """The path or the URL of its directory."""
    nbytes: int | None
    """The bytes of its data files; None if not known, because its manifest cannot be read, or because
    it is another system's checkpoint in a store."""
    pinned: bool
    """True if it is protected from removal."""


@dataclass(frozen=True)
class Contents:
    """The contents of a directory of checkpoints."""

    checkpoints: tuple[Listed, ...]
    """The complete checkpoints, from the lowest step to the highest."""
    set_aside: tuple[str, ...]
    """The names of checkpoints that were set aside: damaged ones, and later ones when a run went back."""
    is_ours: bool = True
    """True if the checkpoints are in Meshwright's format."""


@telling_unreadable()
def contents(directory: str | Directory) -> Contents:
    """Return the checkpoints in a directory, of any format; no array data is read.

    Args:
      directory: A directory of checkpoints, local or in a store. If it is itself a checkpoint, or holds none,
        the contents are empty.

    Example:
      >>> with mw.Checkpoints("run") as checkpoints:
      ...     checkpoints.save(100, {"w": jnp.ones(3)})
      >>> [(x.step, x.pinned) for x in mw.checkpoints.contents("run").checkpoints]
      [(100, False)]
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
    """Return the bytes of the files of another system's checkpoint; None in a store."""
    if not isinstance(path, Path):
        return None
    # A TensorFlow checkpoint has no directory: its path is the common prefix of its files' names.
    files = [path, *path.rglob("*")] if path.exists() else path.parent.glob(f"{path.name}.*")
    return sum(file.stat().st_size for file in files if file.is_file())
