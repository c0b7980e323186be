"""What is wrong with a checkpoint, and what of it can be seen without reading its data."""

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.checkpoint._format import Manifest, read_manifest
from meshwright.errors import DamagedError
from meshwright.storage import Directory, ObjectPath, wrong_objects


@dataclass(frozen=True)
class Damage:
    """One thing that is not what was written."""

    file: str
    """The file's name in the checkpoint's directory."""
    piece: str | None
    """What is damaged: an array's name, `the central directory` …; None for the whole file."""
    offset: int
    """Where the piece begins, in bytes."""
    nbytes: int
    found: str
    """What was found instead."""

    def __str__(self) -> str:
        """Return it as one line."""
        where = f"{self.piece}, {self.nbytes} bytes at offset {self.offset}: " if self.piece else ""
        return f"{self.file}: {where}{self.found}"


def incomplete(directory: Directory) -> str | None:
    """Return what is plainly wrong with a checkpoint (its manifest, a file's size), or None.

    It costs little more than to read the manifest.

    Raises:
      CheckpointError: It is of a newer format than this reader.
    """
    try:
        manifest = read_manifest(directory)
    except DamagedError as error:
        return str(error)
    return next((str(damage) for damage in wrong_files(directory, manifest)), None)


def wrong_files(directory: Directory, manifest: Manifest) -> Iterator[Damage]:
    """Yield the files that are missing or of another size."""
    for file in manifest.files:
        for found in _wrong(directory / file.name, file.nbytes):
            yield Damage(file.name, None, 0, file.nbytes, found)


def _wrong(path: Directory, nbytes: int) -> list[str]:
    if isinstance(path, ObjectPath):
        return wrong_objects(path, nbytes)
    if not path.is_file():
        return ["the file is missing"]
    found = path.stat().st_size
    return [f"has {found} bytes instead of {nbytes}"] if found != nbytes else []
