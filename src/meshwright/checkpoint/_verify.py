"""Every byte of a checkpoint of ours is compared with what was written."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from meshwright.checkpoint._damage import Damage, wrong_files
from meshwright.checkpoint._format import MANIFEST, Manifest, Piece, pieces, read_manifest
from meshwright.crc32 import crc32
from meshwright.errors import DamagedError
from meshwright.storage import Directory, ObjectBytes, ObjectPath, parts_of

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


def native_report(directory: Directory) -> Report:
    """Return what `verify` finds in a checkpoint of our format.

    Raises:
      CheckpointError: It is of a newer format than this reader.
    """
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
