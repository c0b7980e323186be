"""Verifies every byte of a checkpoint against its manifest.

The manifest has the checksums of the chunks. All other bytes of a data file (headers, padding, zarr.json, the
central directory) follow from the manifest by the same functions that wrote them. So no byte of a checkpoint
can change unnoticed, though a restore does not read all of them.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from meshwright.base._internal import Directory, ObjectBytes, ObjectPath, parts_of, wrong_objects
from meshwright.base._internal import crc32 as crc32_of
from meshwright.checkpoints._format._container import local_header, plan_file, with_crc
from meshwright.checkpoints._format._layout import ArrayLayout
from meshwright.checkpoints._format._manifest import MANIFEST, Manifest, read_manifest
from meshwright.checkpoints._format._read import NativeSource
from meshwright.checkpoints._format._snapshot import Snapshot
from meshwright.checkpoints._format._write import crc32_of_pieces
from meshwright.errors import DamagedError

_BLOCK = 1 << 20  # bytes checksummed at a time

ReadBytes = Callable[[int, int], Any]
"""Returns the bytes of a file from one offset up to another; fewer if the file ends before."""


@dataclass(frozen=True)
class Damage:
    """A damaged piece of a checkpoint."""

    file: str
    """The file's name in the checkpoint's directory."""
    piece: str | None
    """The damaged piece: an array's name, `the central directory` …; None for the whole file."""
    offset: int
    """The offset of the piece in the file, in bytes."""
    nbytes: int
    """The size of the piece, in bytes."""
    found: str
    """A text that says what was found instead."""

    def __str__(self) -> str:
        """Return the damage in one line."""
        where = f"{self.piece}, {self.nbytes} bytes at offset {self.offset}: " if self.piece else ""
        return f"{self.file}: {where}{self.found}"


@dataclass(frozen=True)
class Report:
    """The result of verifying a checkpoint, as `verify` returns it."""

    checkpoint: str
    """The path of the step directory."""
    num_files: int
    """The number of files; 0 for another system's checkpoint, whose files are not counted."""
    num_arrays: int
    """The number of arrays."""
    nbytes: int
    """The bytes checked, in all files together."""
    damage: tuple[Damage, ...]
    """All damaged pieces; empty if the checkpoint is intact."""
    format: str | None = None
    """The name of another system's format, which may have no checksums: then reading all of it was the only
    check. None for Meshwright's own."""


class _Piece(NamedTuple):
    """A range of bytes of a data file; the pieces of a file cover all of it."""

    name: str
    """A name for messages: `params/w` for a chunk of that array."""
    offset: int
    size: int
    crc32: int


def incomplete(directory: Directory) -> str | None:
    """Return the first obvious error of a checkpoint, in its manifest or in the sizes of files; or None.

    This takes little longer than reading the manifest.
    """
    try:
        manifest = read_manifest(directory)
    except DamagedError as error:
        return str(error)
    return next((str(damage) for damage in _wrong_files(directory, manifest)), None)


def native_report(directory: Directory) -> Report:
    """Return the result of verifying a checkpoint in Meshwright's format."""
    try:
        manifest = read_manifest(directory)
    except DamagedError as error:
        nbytes = len((directory / MANIFEST).read_bytes()) if (directory / MANIFEST).is_file() else 0
        return Report(str(directory), 1, 0, nbytes, (Damage(MANIFEST, None, 0, nbytes, str(error)),))
    return Report(
        str(directory),
        1 + len(manifest.files),
        len(manifest.arrays),
        len((directory / MANIFEST).read_bytes()) + sum(file.nbytes for file in manifest.files),
        tuple(_damage(directory, manifest)),
    )


def other_arrays(directory: Directory, leaves: Mapping[str, Any], arrays: Sequence[ArrayLayout]) -> list[str]:
    """Return the names of arrays that differ from those of a checkpoint, in the chunks of this process.

    Data files are read only where arrays were saved in other chunks: otherwise the checksums say it.
    """
    source, number = NativeSource(directory), jax.process_index()
    saved = source.manifest.arrays

    def differs(layout: ArrayLayout) -> bool:
        array = saved.get(layout.name)
        if array is None or (array.shape, array.dtype) != (layout.shape, layout.dtype.name):
            return True
        chunks = Snapshot(leaves, [layout], number)
        chunks.take(wait=True)
        owned = [chunk for chunk, writer in enumerate(layout.writers) if writer == number]
        # With the same chunks, the checksums in the manifest are those to compare, and nothing is read.
        if array.chunk_shape == layout.chunk_shape:
            crcs = [array.chunks[chunk].crc32 for chunk in owned]
        else:
            indices = list(layout.indices())
            parts = source.read_parts(layout.name, [indices[chunk] for chunk in owned]) if owned else []
            crcs = [crc32_of(np.ascontiguousarray(part).reshape(-1).view(np.uint8)) for part in parts]
        return crcs != [crc32_of_pieces(chunks.get(chunk)) for chunk in range(len(owned))]

    return [*(saved.keys() - leaves.keys()), *(layout.name for layout in arrays if differs(layout))]


def _damage(directory: Directory, manifest: Manifest) -> Iterator[Damage]:
    wrong = list(_wrong_files(directory, manifest))
    yield from wrong
    for number, file in enumerate(manifest.files):
        path = directory / file.name
        if any(damage.file == file.name for damage in wrong) and _is_gone(path, file.nbytes):
            continue
        with _opened(path, file.nbytes) as read:
            for piece in _pieces(manifest, number):
                if problem := _difference(read, piece):
                    yield Damage(file.name, piece.name, piece.offset, piece.size, problem)


def _wrong_files(directory: Directory, manifest: Manifest) -> Iterator[Damage]:
    """Yield a `Damage` for each file that is missing or has another size."""
    for file in manifest.files:
        for problem in _wrong(directory / file.name, file.nbytes):
            yield Damage(file.name, None, 0, file.nbytes, problem)


def _wrong(path: Directory, nbytes: int) -> list[str]:
    if isinstance(path, ObjectPath):
        return wrong_objects(path, nbytes)
    if not path.is_file():
        return ["the file is missing"]
    size = path.stat().st_size
    return [f"has {size} bytes instead of {nbytes}"] if size != nbytes else []


def _is_gone(path: Directory, nbytes: int) -> bool:
    """Return whether a data file is missing completely."""
    if isinstance(path, ObjectPath):
        return not any(part.path.is_file() for part in parts_of(path, nbytes))
    return not path.is_file()


@contextmanager
def _opened(path: Directory, nbytes: int) -> Iterator[ReadBytes]:
    """Open a data file, and yield a function that reads a range of it."""
    if isinstance(path, ObjectPath):
        stored = ObjectBytes(parts_of(path, nbytes))
        yield lambda first, last: stored[first:last]
        return
    with path.open("rb") as file:
        yield lambda first, last: os.pread(file.fileno(), last - first, first)


def _difference(read: ReadBytes, piece: _Piece) -> str | None:
    """Return a text about how the file's bytes differ from those of the piece; None if they do not."""
    crc, position, end = 0, piece.offset, piece.offset + piece.size
    while position < end:
        try:
            block = read(position, min(position + _BLOCK, end))
        except DamagedError as error:
            return str(error)
        if not len(block):
            return f"the last {end - position} bytes are missing"
        crc, position = crc32_of(block, crc), position + len(block)
    return None if crc == piece.crc32 else f"the CRC-32 is {crc:08x} instead of {piece.crc32:08x}"


def _pieces(manifest: Manifest, number: int) -> Iterator[_Piece]:
    """Yield all pieces of data file `number`, in order of their offsets."""
    planned = plan_file(tuple(manifest.layouts()), number)
    for entry, content in planned.metadata_entries:
        header = local_header(entry, crc32_of(content))
        yield _piece_of(f"the header of {entry.path}", entry.header_offset, header)
        yield _piece_of(entry.path, entry.data_offset, content)
    for (name, chunk), entry, header in zip(planned.chunks, planned.entries, planned.headers, strict=True):
        saved_chunk = manifest.arrays[name].chunks[chunk]
        yield _piece_of(
            f"the header of {entry.path}", entry.header_offset, with_crc(header, saved_chunk.crc32)
        )
        yield _Piece(name, entry.data_offset, entry.size, saved_chunk.crc32)
        # A restore reads at the offset in the manifest, so these bytes are checked, too.
        if saved_chunk.offset != entry.data_offset:
            yield _Piece(name, saved_chunk.offset, entry.size, saved_chunk.crc32)
    crcs = [manifest.arrays[name].chunks[chunk].crc32 for name, chunk in planned.chunks]
    yield _piece_of("the central directory", planned.end, planned.directory_with(crcs))


def _piece_of(name: str, offset: int, content: bytes) -> _Piece:
    return _Piece(name, offset, len(content), crc32_of(content))
