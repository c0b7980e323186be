"""Whole checkpoints are read, to see whether they still are what was written."""

from collections.abc import Iterator

from meshwright.arrays import cuts, slabs
from meshwright.checkpoint import MANIFEST, Damage, Report, native_report
from meshwright.errors import CheckpointError, DamagedError
from meshwright.formats._open import checkpoints_at, reader_of
from meshwright.formats.readers import Reader, opened
from meshwright.storage import Directory, telling_unreadable


def verify(path: str | Directory) -> Report:
    """Compare every byte of a checkpoint with what was written.

    Reads all of it, in constant memory; needs no devices and writes nothing. Another system's is read whole,
    so that what is missing or cut off is found, and other bytes as far as its format has checksums.

    Args:
      path: a step directory, or a directory of checkpoints, for the newest in it; local or not.

    Raises:
      CheckpointError: There is no checkpoint, or it is of a newer format than this reader.
      MeshwrightError: It is in an object store, and that does not answer.
    """
    return _report(checkpoints_at(path)[-1])


def verify_all(path: str | Directory) -> Iterator[Report]:
    """Yield what `verify` says of each checkpoint in a directory, the oldest first, or of the one at `path`.

    A run may save there meanwhile: what it removes before it is read is left out.

    Raises: as `verify`.
    """
    for directory in checkpoints_at(path):
        try:
            report = _report(directory)
        except (CheckpointError, FileNotFoundError):
            if _is_there(directory):
                raise
            continue
        if not report.damage or _is_there(directory):
            yield report


def _is_there(directory: Directory) -> bool:
    return (directory / MANIFEST).is_file() or reader_of(directory) is not None


@telling_unreadable()
def _report(directory: Directory) -> Report:
    reader = None if (directory / MANIFEST).is_file() else reader_of(directory)
    return native_report(directory) if reader is None else _read_whole(directory, reader)


def _read_whole(directory: Directory, reader: Reader) -> Report:
    """Read all of another system's checkpoint, and return what cannot be read."""
    try:
        source = opened(reader, directory)
    except DamagedError as error:
        damaged = Damage(directory.name, None, 0, 0, str(error))
        return Report(str(directory), 0, 0, 0, (damaged,), reader.name)
    arrays, damage = source.arrays(), []
    for name, array in arrays.items():
        try:
            chunks = array.stored_chunks  # each read once, where it lies in such
            parts = cuts(array.shape, chunks) if chunks else slabs(array.shape, array.dtype.itemsize)
            for index in parts:
                array.read(index)
        except DamagedError as error:
            damage.append(Damage(directory.name, name, 0, array.nbytes, str(error).removeprefix(f"{name}: ")))
    nbytes = sum(array.nbytes for array in arrays.values())
    return Report(str(directory), 0, len(arrays), nbytes, tuple(damage), source.format)
