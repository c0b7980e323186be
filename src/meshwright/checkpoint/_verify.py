"""Reading whole checkpoints to see whether they still are what was written."""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from meshwright.checkpoint._damage import Damage, wrong_files
from meshwright.checkpoint._format import MANIFEST, Manifest, Piece, crc32, pieces, read_manifest, slabs
from meshwright.checkpoint._lazy import Index, LazyArray
from meshwright.checkpoint._object_bytes import ObjectBytes
from meshwright.checkpoint._object_file import parts_of
from meshwright.checkpoint._object_path import Directory, ObjectPath
from meshwright.checkpoint._permission import telling_unreadable
from meshwright.checkpoint._source import checkpoints_at, reader_of
from meshwright.checkpoint.readers import Reader, opened
from meshwright.errors import CheckpointError, DamagedError

_BLOCK = 1 << 20  # bytes checksummed at a time

Read = Callable[[int, int], Any]
"""Returns the bytes of a file from one offset up to another, or fewer where it ends before."""


@dataclass(frozen=True)
class Report:
    """What `verify` found."""

    checkpoint: str
    """Path of the step directory."""
    num_files: int
    """Files of ours; 0 of another system's, which are not counted."""
    num_arrays: int
    nbytes: int
    """Bytes checked, all files together."""
    damage: tuple[Damage, ...]
    """All that is wrong; empty where the checkpoint is intact."""
    format: str | None = None
    """Another system's, of which all was read; its format may have no checksums. None of ours."""


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
    return _native_report(directory) if reader is None else _read_whole(directory, reader)


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
            for index in _parts(array):
                array.read(index)
        except DamagedError as error:
            damage.append(Damage(directory.name, name, 0, array.nbytes, str(error).removeprefix(f"{name}: ")))
    nbytes = sum(array.nbytes for array in arrays.values())
    return Report(str(directory), 0, len(arrays), nbytes, tuple(damage), source.format)


def _parts(array: LazyArray) -> Iterator[Index]:
    """Yield all parts of an array, each chunk once where it lies in such."""
    if array.stored_chunks is None:
        yield from slabs(array.shape, array.dtype.itemsize)
        return
    starts = [range(0, size, chunk) for size, chunk in zip(array.shape, array.stored_chunks, strict=True)]
    for place in itertools.product(*starts):
        yield tuple(
            slice(start, min(start + chunk, size))
            for start, chunk, size in zip(place, array.stored_chunks, array.shape, strict=True)
        )


def _native_report(directory: Directory) -> Report:
    try:
        manifest = read_manifest(directory)
    except DamagedError as error:
        nbytes = len((directory / MANIFEST).read_bytes())
        return Report(str(directory), 1, 0, nbytes, (Damage(MANIFEST, None, 0, nbytes, str(error)),))
    return Report(
        str(directory),
        1 + len(manifest.files),
        len(manifest.arrays),
        len((directory / MANIFEST).read_bytes()) + sum(file.nbytes for file in manifest.files),
        tuple(_damage(directory, manifest)),
    )


def _damage(directory: Directory, manifest: Manifest) -> Iterator[Damage]:
    wrong = list(wrong_files(directory, manifest))
    yield from wrong
    for number, file in enumerate(manifest.files):
        path = directory / file.name
        if any(damage.file == file.name for damage in wrong) and _is_gone(path, file.nbytes):
            continue
        with _opened(path, file.nbytes) as read:
            for piece in pieces(manifest, number):
                if found := _difference(read, piece):
                    yield Damage(file.name, piece.what, piece.offset, piece.size, found)


def _is_gone(path: Directory, nbytes: int) -> bool:
    """Return whether nothing is left of a data file."""
    if isinstance(path, ObjectPath):
        return not any(part.path.is_file() for part in parts_of(path, nbytes))
    return not path.is_file()


@contextmanager
def _opened(path: Directory, nbytes: int) -> Iterator[Read]:
    """Open a data file to read it from one end to the other."""
    if isinstance(path, ObjectPath):
        stored = ObjectBytes(parts_of(path, nbytes))
        yield lambda first, last: stored[first:last]
        return
    with path.open("rb") as file:
        yield lambda first, last: os.pread(file.fileno(), last - first, first)


def _difference(read: Read, piece: Piece) -> str | None:
    """Return how the bytes in the file differ from those of the piece, or None."""
    crc, at, end = 0, piece.offset, piece.offset + piece.size
    while at < end:
        try:
            block = read(at, min(at + _BLOCK, end))
        except DamagedError as error:
            return str(error)
        if not len(block):
            return f"the last {end - at} bytes are not there"
        crc, at = crc32(block, crc), at + len(block)
    return None if crc == piece.crc32 else f"the CRC-32 is {crc:08x} instead of {piece.crc32:08x}"
