"""The contents of a directory of checkpoints of any format, pins, and verification by reading all data.

A checkpoint with a file `PINNED` in its directory is not removed by any retention policy. Any program or
person may create the file at any time; its text is for people. T5X respects it, too.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from meshwright.base._internal import Directory, ObjectPath, fsync_directory, location
from meshwright.checkpoints._arrays._chunks import cuts, slabs
from meshwright.checkpoints._directory import PINNED, set_aside_names
from meshwright.checkpoints._format._manifest import MANIFEST, read_manifest
from meshwright.checkpoints._format._read import errors_naming_unreadable
from meshwright.checkpoints._format._verify import Damage, Report, native_report
from meshwright.checkpoints._formats._open import checkpoints_at, reader_of, steps_at
from meshwright.checkpoints._formats.readers._reader import Reader, opened
from meshwright.errors import CheckpointError, DamagedError


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


@errors_naming_unreadable()
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
    path = location(directory)
    steps = steps_at(path)
    is_ours = all((path / MANIFEST).is_file() for path in steps.values())
    size_of = _native_nbytes if is_ours else _nbytes
    listed = (Listed(step, str(path), size_of(path), is_pinned(path)) for step, path in steps.items())
    return Contents(tuple(listed), tuple(set_aside_names(path)), is_ours)


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


def pin(path: str | Directory, note: str = "") -> None:
    """Protect a checkpoint from removal until it is unpinned.

    When this returns, the checkpoint is safe, even from a removal in progress, and after a crash.

    Args:
      path: The step directory, local or in a store.
      note: A text for people: the reason, or who needs the checkpoint.

    Raises:
      CheckpointError: There is no complete checkpoint at `path`, perhaps because it has just been removed; or
        its system does not support pins.

    Example:
      >>> with mw.Checkpoints("run", keep=1) as checkpoints:
      ...     checkpoints.save(100, {"w": jnp.ones(3)})
      ...     checkpoints.wait()
      ...     mw.checkpoints.pin("run/step_00000100", "used in the paper")
      ...     checkpoints.save(200, {"w": jnp.ones(3)})
      ...     checkpoints.save(300, {"w": jnp.ones(3)})
      >>> mw.checkpoints._internal.complete_steps(mw.base._internal.location("run"))
      [100, 300]
    """
    directory = location(path)
    mark = directory / PINNED
    try:
        if not (directory / MANIFEST).is_file():
            _check_foreign(directory)
        if isinstance(mark, ObjectPath):
            mark.put(f"{note}\n".encode())
        else:
            _write_durably(mark, f"{note}\n")
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"cannot pin {directory}: it is not a complete checkpoint.") from None


def _check_foreign(directory: Directory) -> None:
    """Raise an error if another system's checkpoint does not exist, or if that system ignores pins."""
    reader = reader_of(directory)
    if reader is None or steps_at(directory):
        raise FileNotFoundError
    if not reader.has_pins:
        raise CheckpointError(
            f"{directory} is a checkpoint of {reader.name}, which has no pins. Copy it to another directory, "
            "or convert it by `meshwright convert`."
        )
    # Opening raises an error if the checkpoint is not complete.
    opened(reader, directory)


def _write_durably(mark: Path, text: str) -> None:
    """Write the file in place, as it protects from its first byte on, and flush it and the entries of both.

    A run may have been killed after it committed the checkpoint and before it flushed that.
    """
    opened = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with os.fdopen(opened, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    # FileNotFoundError if a removal has renamed the directory meanwhile.
    fsync_directory(mark.parent)
    fsync_directory(mark.parent.parent)


def unpin(path: str | Directory) -> None:
    """Remove the pin of a checkpoint, if any, so that the retention policy may remove the checkpoint.

    Args:
      path: The step directory, local or in a store.

    Example:
      >>> with mw.Checkpoints("run") as checkpoints:
      ...     checkpoints.save(100, {"w": jnp.ones(3)})
      >>> mw.checkpoints.pin("run/step_00000100", "used in the paper")
      >>> mw.checkpoints.unpin("run/step_00000100")
      >>> mw.checkpoints.is_pinned("run/step_00000100")
      False
    """
    mark = location(path) / PINNED
    # Another process may unpin the checkpoint at the same moment.
    with suppress(FileNotFoundError):
        if mark.is_file():
            mark.unlink()


def is_pinned(path: str | Directory) -> bool:
    """Return whether a checkpoint is pinned; False if it does not exist.

    Args:
      path: The step directory, local or in a store.

    Example:
      >>> with mw.Checkpoints("run") as checkpoints:
      ...     checkpoints.save(100, {"w": jnp.ones(3)})
      >>> mw.checkpoints.pin("run/step_00000100", "used in the paper")
      >>> mw.checkpoints.is_pinned("run/step_00000100")
      True
    """
    return (location(path) / PINNED).is_file()


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
    # A checkpoint that has lost its manifest still exists.
    is_on_disk = isinstance(directory, Path) and directory.exists()
    return is_on_disk or (directory / MANIFEST).is_file() or reader_of(directory) is not None


@errors_naming_unreadable()
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
            # Parts that are whole chunks are each read once.
            chunks = array.stored_chunks
            parts = cuts(array.shape, chunks) if chunks else slabs(array.shape, array.dtype.itemsize)
            for index in parts:
                array.read(index)
        except DamagedError as error:
            damage.append(Damage(directory.name, name, 0, array.nbytes, str(error).removeprefix(f"{name}: ")))
    nbytes = sum(array.nbytes for array in arrays.values())
    return Report(str(directory), 0, len(arrays), nbytes, tuple(damage), source.format)
