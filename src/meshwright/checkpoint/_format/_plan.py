"""What a process's data file will be, but for the bytes of its chunks and their checksums.

It depends on the layouts alone, so a run that saves the same tree again and again plans once.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.checkpoint._format import _zarr, _zip
from meshwright.checkpoint._format._layout import ArrayLayout
from meshwright.crc32 import crc32


@dataclass(frozen=True)
class Plan:
    """One data file: metadata entries, then chunks, then the central directory."""

    chunks: list[tuple[str, int]]
    """Array and number of each chunk."""
    entries: list[_zip.Entry]
    """Where each chunk lies."""
    headers: list[bytes]
    """What stands before each chunk, with a CRC-32 of 0."""
    metadata_entries: list[tuple[_zip.Entry, bytes]]
    """The metadata, with where each piece of it lies."""
    metadata: bytes
    """What stands before the first chunk's header: all of those, with their headers."""
    directory: bytes
    """What stands after the last chunk, with CRC-32s of 0 for the chunks."""
    crc_offsets: list[int]
    """Where those stand in it."""

    @property
    def end(self) -> int:
        """Return where the directory begins."""
        last = self.entries[-1] if self.entries else None
        return last.data_offset + last.size if last else len(self.metadata)

    @property
    def nbytes(self) -> int:
        """Return the size of the file."""
        return self.end + len(self.directory)

    def directory_with(self, crcs: Sequence[int]) -> bytes:
        """Return what stands after the last chunk, given the CRC-32 of each."""
        directory = bytearray(self.directory)
        for offset, crc in zip(self.crc_offsets, crcs, strict=True):
            _zip.CRC.pack_into(directory, offset, crc)
        return bytes(directory)


@functools.lru_cache(maxsize=4)
def plan(layouts: tuple[ArrayLayout, ...], process_index: int) -> Plan:
    """Plan the data file of one process."""
    metadata = _metadata(layouts, process_index)
    owned = [
        (layout, number, position)
        for layout in layouts
        if process_index in layout.writers
        for number, position in enumerate(layout.positions())
        if layout.writers[number] == process_index
    ]
    entries = _zip.plan(
        itertools.chain(
            ((path, len(content)) for path, content in metadata.items()),
            ((_chunk_path(layout, position), layout.chunk_nbytes) for layout, _, position in owned),
        )
    )
    above, entries = entries[: len(metadata)], entries[len(metadata) :]
    crcs = [crc32(content) for content in metadata.values()]
    headers = map(_zip.local_header, above, crcs)
    directory, crc_offsets = _zip.directory([*above, *entries], crcs + [0] * len(entries))
    return Plan(
        chunks=[(layout.name, number) for layout, number, _ in owned],
        entries=entries,
        headers=[_zip.local_header(entry, 0) for entry in entries],
        metadata_entries=list(zip(above, metadata.values(), strict=True)),
        metadata=b"".join(itertools.chain(*zip(headers, metadata.values(), strict=True))),
        directory=directory,
        crc_offsets=crc_offsets[len(above) :],
    )


def _chunk_path(layout: ArrayLayout, position: tuple[int, ...]) -> str:
    return _zarr.chunk_path(_zarr.node_path(layout.name), position)


def _metadata(layouts: Sequence[ArrayLayout], process_index: int) -> dict[str, bytes]:
    """Return the metadata entries of this process's file: the arrays it has chunks of, and the groups above.

    Arrays without a single chunk, because they have no elements, are process 0's.
    """
    mine = [layout for layout in layouts if process_index in (layout.writers or (0,))]
    here = {_zarr.node_path(layout.name): layout for layout in mine}
    groups = {path: _zarr.group_metadata() for path in _zarr.groups_above(here)}
    arrays = {
        f"{node}/{_zarr.METADATA}": _zarr.array_metadata(layout.shape, layout.dtype, layout.chunk_shape)
        for node, layout in here.items()
    }
    return groups | arrays
