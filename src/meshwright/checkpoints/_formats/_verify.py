"""Verifies checkpoints of any format by reading all of their data."""

from collections.abc import Iterator
from pathlib import Path

from meshwright.base._internal import Directory
from meshwright.checkpoints._arrays._chunks import cuts, slabs
from meshwright.checkpoints._format._manifest import MANIFEST
from meshwright.checkpoints._format._read import telling_unreadable
from meshwright.checkpoints._format._verify import Damage, Report, native_report
from meshwright.checkpoints._formats._open import checkpoints_at, reader_of
from meshwright.checkpoints._formats.readers._reader import Reader, opened
from meshwright.errors import CheckpointError, DamagedError


def verify(path: str | Directory) -> Report:
    """Read a whole checkpoint, compare it with its checksums, and return a report of all damage.

    Uses constant memory and no devices, and writes nothing. In Meshwright's format every byte is checked. In
    another system's format, missing and truncated files are found, and changed bytes only if the format has
    checksums.

    Args:
      path: A step directory, or a directory of checkpoints, of which the newest is read; local or in a store.

    Raises:
      CheckpointError: There is no checkpoint, or its format version is too new.
      MeshwrightError: The store does not answer.

    Example:
      >>> with mw.Checkpoints("run") as checkpoints:
      ...     checkpoints.save(100, {"w": jnp.ones(3)})
      >>> mw.checkpoints.verify("run").damage
      ()
    """
    return _report(checkpoints_at(path)[-1])


def verify_all(path: str | Directory) -> Iterator[Report]:
    """Yield the report of `verify` for each checkpoint in a directory, the lowest step first.

    A run may save there meanwhile; checkpoints that it removes before they are read are left out.

    Args:
      path: A directory of checkpoints, or a single checkpoint; local or in a store.

    Raises:
      CheckpointError: As `verify`.
      MeshwrightError: As `verify`.

    Example:
      >>> with mw.Checkpoints("run") as checkpoints:
      ...     for step in (100, 200):
      ...         checkpoints.save(step, {"w": jnp.ones(3)})
      >>> [report.damage for report in mw.checkpoints.verify_all("run")]
      [(), ()]
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
    is_on_disk = isinstance(directory, Path) and directory.exists()  # also if it has lost its manifest
    return is_on_disk or (directory / MANIFEST).is_file() or reader_of(directory) is not None


@telling_unreadable()
def _report(directory: Directory) -> Report:
    reader = None if (directory / MANIFEST).is_file() else reader_of(directory)
    return native_report(directory) if reader is None else _read_whole(directory, reader)


def _read_whole(directory: Directory, reader: Reader) -> Report:
    """Read all of another system's checkpoint, and report the arrays that cannot be read."""
    try:
        source = opened(reader, directory)
    except DamagedError as error:
        damaged = Damage(directory.name, None, 0, 0, str(error))
        return Report(str(directory), 0, 0, 0, (damaged,), reader.name)
    arrays, damage = source.arrays(), []
    for name, array in arrays.items():
        try:
            chunks = array.stored_chunks  # so that each chunk is read once
            parts = cuts(array.shape, chunks) if chunks else slabs(array.shape, array.dtype.itemsize)
            for index in parts:
                array.read(index)
        except DamagedError as error:
            damage.append(Damage(directory.name, name, 0, array.nbytes, str(error).removeprefix(f"{name}: ")))
    nbytes = sum(array.nbytes for array in arrays.values())
    return Report(str(directory), 0, len(arrays), nbytes, tuple(damage), source.format)
