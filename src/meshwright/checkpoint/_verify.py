"""Reading a whole checkpoint to see whether it still is what was written."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from meshwright.checkpoint._format import MANIFEST, Manifest, Piece, crc32, pieces, read_manifest
from meshwright.checkpoint._object_path import local
from meshwright.checkpoint._source import checkpoint_directory
from meshwright.errors import DamagedError

_BLOCK = 1 << 20  # bytes read at a time


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


@dataclass(frozen=True)
class Report:
    """What `verify` found."""

    checkpoint: str
    """Path of the step directory."""
    num_files: int
    num_arrays: int
    nbytes: int
    """Bytes checked, all files together."""
    damage: tuple[Damage, ...]
    """All that is wrong; empty where the checkpoint is intact."""


def verify(path: str | Path) -> Report:
    """Compare every byte of a checkpoint with what was written.

    Reads all of it, in constant memory; needs no devices and writes nothing.

    Args:
      path: a step directory, or a directory of checkpoints, for the newest in it.

    Raises:
      CheckpointError: There is no checkpoint, or it is of a newer format than this reader.
    """
    directory = local(str(checkpoint_directory(local(path))))
    manifest_bytes = (directory / MANIFEST).stat().st_size
    try:
        manifest = read_manifest(directory)
    except DamagedError as error:
        damage = Damage(MANIFEST, None, 0, manifest_bytes, str(error))
        return Report(str(directory), 1, 0, manifest_bytes, (damage,))
    return Report(
        str(directory),
        1 + len(manifest.files),
        len(manifest.arrays),
        manifest_bytes + sum(file.nbytes for file in manifest.files),
        tuple(_damage(directory, manifest)),
    )


def incomplete(directory: Path) -> str | None:
    """Return what is plainly wrong with a checkpoint (its manifest, a file's size), or None.

    It costs no more than to read the manifest.
    """
    try:
        manifest = read_manifest(directory)
    except DamagedError as error:
        return str(error)
    return next((str(damage) for damage in _wrong_sizes(directory, manifest)), None)


def _damage(directory: Path, manifest: Manifest) -> Iterator[Damage]:
    yield from _wrong_sizes(directory, manifest)
    for number, file in enumerate(manifest.files):
        if not (directory / file.name).is_file():
            continue
        with (directory / file.name).open("rb") as opened:
            for piece in pieces(manifest, number):
                if found := _difference(opened, piece):
                    yield Damage(file.name, piece.what, piece.offset, piece.size, found)


def _wrong_sizes(directory: Path, manifest: Manifest) -> Iterator[Damage]:
    for file in manifest.files:
        path = directory / file.name
        if not path.is_file():
            yield Damage(file.name, None, 0, file.nbytes, "the file is missing")
        elif (found := path.stat().st_size) != file.nbytes:
            yield Damage(file.name, None, 0, file.nbytes, f"has {found} bytes instead of {file.nbytes}")


def _difference(file: BinaryIO, piece: Piece) -> str | None:
    """Return how the bytes in the file differ from those of the piece, or None."""
    file.seek(piece.offset)
    crc, left = 0, piece.size
    while left and (block := file.read(min(left, _BLOCK))):
        crc, left = crc32(block, crc), left - len(block)
    if left:
        return f"the last {left} bytes are not there"
    return None if crc == piece.crc32 else f"the CRC-32 is {crc:08x} instead of {piece.crc32:08x}"
