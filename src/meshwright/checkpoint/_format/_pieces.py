"""What every byte of a data file must be, worked out from the manifest alone.

Chunks have their checksums in the manifest. All else in a data file (headers, padding, zarr.json, the
central directory) follows from the manifest by the same functions that wrote it. So nothing in a
checkpoint can change unnoticed, though most of it is never read by a restore.
"""

import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from meshwright.checkpoint._format import _zarr, _zip
from meshwright.checkpoint._format._layout import ArrayLayout
from meshwright.checkpoint._format._manifest import Manifest
from meshwright.checkpoint._format._part import metadata_entries


class Piece(NamedTuple):
    """A stretch of a data file; together the pieces of a file are all of it."""

    what: str
    """What it is, for people: `params/w`, for a chunk of that array."""
    offset: int
    size: int
    crc32: int


def pieces(manifest: Manifest, number: int) -> Iterator[Piece]:
    """Yield all pieces of data file `number`, in the order in which they lie there."""
    contents = [*_metadata(manifest, number), *_chunks(manifest, number)]
    entries = _zip.plan((path, size) for path, _, size, _ in contents)
    for entry, (_, what, size, crc) in zip(entries, contents, strict=True):
        yield _known(f"the header of {entry.path}", entry.header_offset, _zip.local_header(entry, crc))
        yield Piece(what, entry.data_offset, size, crc)
    directory = _zip.directory(entries, [crc for *_, crc in contents])
    yield _known("the central directory", _zip.end_of(entries), directory)


_Content = tuple[str, str, int, int]
"""Path, what it is, size and CRC-32 of one entry."""


def _metadata(manifest: Manifest, number: int) -> list[_Content]:
    entries = metadata_entries(layouts_of(manifest), number)
    return [(path, path, len(data), zlib.crc32(data)) for path, data in entries.items()]


def _chunks(manifest: Manifest, number: int) -> Iterator[_Content]:
    for layout in layouts_of(manifest):
        places = zip(layout.positions(), manifest.arrays[layout.name].chunks, strict=True)
        for position, place in places:
            if place.file == number:
                path = _zarr.chunk_path(_zarr.node_path(layout.name), position)
                yield path, layout.name, place.size, place.crc32


def layouts_of(manifest: Manifest) -> list[ArrayLayout]:
    """Return how the arrays of a checkpoint are cut into chunks, and who wrote each."""
    return [
        ArrayLayout(
            name,
            array.shape,
            np.dtype(array.dtype),
            array.chunk_shape,
            writers=tuple(place.file for place in array.chunks),
        )
        for name, array in manifest.arrays.items()
    ]


def _known(what: str, offset: int, content: bytes) -> Piece:
    return Piece(what, offset, len(content), zlib.crc32(content))
