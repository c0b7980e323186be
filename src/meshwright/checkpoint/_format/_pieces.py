"""What every byte of a data file must be, worked out from the manifest alone.

Chunks have their checksums in the manifest. All else in a data file (headers, padding, zarr.json, the
central directory) follows from the manifest by the same functions that wrote it. So nothing in a
checkpoint can change unnoticed, though most of it is never read by a restore.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from meshwright.checkpoint._format import _zip
from meshwright.checkpoint._format._layout import ArrayLayout
from meshwright.checkpoint._format._manifest import Manifest
from meshwright.checkpoint._format._plan import plan
from meshwright.crc32 import crc32 as crc32_of


class Piece(NamedTuple):
    """A stretch of a data file; together the pieces of a file are all of it."""

    what: str
    """What it is, for people: `params/w`, for a chunk of that array."""
    offset: int
    size: int
    crc32: int


def pieces(manifest: Manifest, number: int) -> Iterator[Piece]:
    """Yield all pieces of data file `number`, in the order in which they lie there."""
    planned = plan(tuple(layouts_of(manifest)), number)
    for entry, content in planned.metadata_entries:
        header = _zip.local_header(entry, crc32_of(content))
        yield _known(f"the header of {entry.path}", entry.header_offset, header)
        yield _known(entry.path, entry.data_offset, content)
    for (name, chunk), entry, header in zip(planned.chunks, planned.entries, planned.headers, strict=True):
        place = manifest.arrays[name].chunks[chunk]
        yield _known(f"the header of {entry.path}", entry.header_offset, _zip.with_crc(header, place.crc32))
        yield Piece(name, entry.data_offset, entry.size, place.crc32)
        if place.offset != entry.data_offset:  # then a restore does not read that, but this
            yield Piece(name, place.offset, entry.size, place.crc32)
    crcs = [manifest.arrays[name].chunks[chunk].crc32 for name, chunk in planned.chunks]
    yield _known("the central directory", planned.end, planned.directory_with(crcs))


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
    return Piece(what, offset, len(content), crc32_of(content))
