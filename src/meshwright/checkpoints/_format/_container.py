"""A data file: a ZIP file that holds a zarr v3 hierarchy, planned in full before a byte of it is written.

    │ local header: 30 bytes │ path │ extra: ZIP64 sizes │ extra: padding │   one of these
    │ data, from the next multiple of 64                                  │   for each entry
    ┆                                                                     ┆
    │ central directory: 46 bytes │ path │ extra: ZIP64 sizes and offset  │   for each entry
    │ ZIP64 end record: 56 bytes │ ZIP64 locator: 20 │ end record: 22     │

Entries are stored, not compressed. Sizes and offsets are always in the ZIP64 extra fields, so the same code
writes files of 5 kB and of 5 TB. Each entry has the CRC-32 of its data. Equal contents give equal files: the
time stamps are those of the ZIP epoch. The entries are:

    zarr.json                    the root group
    params/zarr.json             a group
    params/w/zarr.json           an array
    params/w/c/0/0               its chunks, raw little-endian bytes in row-major order

Sources: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3 (records) and 4.5.3 (ZIP64); the padding is the extra
field 0xD935 of Android's zipalign: the alignment, then zeros. The Zarr core specification 3.1; the data
types that ml_dtypes adds to NumPy (bfloat16, the 8-bit floats and the narrow integers, one byte per
element) are github.com/zarr-developers/zarr-extensions.
"""

import functools
import itertools
import json
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwright.base._internal import crc32
from meshwright.checkpoints._format._layout import ArrayLayout

# The alignment of XLA's CPU buffers, and the size of a cache line.
ALIGNMENT = 64

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_ZIP64_END = struct.Struct("<4sQ2H2L4Q")
_ZIP64_LOCATOR = struct.Struct("<4sLQL")
_END = struct.Struct("<4s4H2LH")
# The ZIP64 extra field in a local header.
_LOCAL_SIZES = struct.Struct("<2H2Q")
# The ZIP64 extra field in the central directory.
_CENTRAL_SIZES = struct.Struct("<2H3Q")
_PADDING = struct.Struct("<3H")
CRC = struct.Struct("<L")

_VERSION = 45  # the first with ZIP64
_MADE_ON_UNIX = 3 << 8 | _VERSION
_UTF8_PATHS = 0x800
_STORED = 0
# The epoch of ZIP files: equal contents give equal files, whenever they are written.
_MIDNIGHT, _NEW_YEAR_1980 = 0, 1 << 5 | 1
# The offset of the CRC-32 in a header.
LOCAL_CRC, _CENTRAL_CRC = 14, 16
# The mode of the files that `unzip` creates.
_ORDINARY_FILE = 0o100644 << 16
_IN_ZIP64_16, _IN_ZIP64_32 = 0xFFFF, 0xFFFFFFFF

_METADATA = "zarr.json"
_GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}


class ZipEntry(NamedTuple):
    """The place of an entry in the file: the size of its data, and the offsets of both parts, in bytes."""

    path: str
    size: int
    header_offset: int
    data_offset: int


@dataclass(frozen=True)
class FilePlan:
    """A data file except for the data of its chunks: metadata entries, then chunks, then the directory."""

    chunks: list[tuple[str, int]]
    """The array's name and the chunk's number, for each chunk."""
    entries: list[ZipEntry]
    """The place of each chunk."""
    headers: list[bytes]
    """The local header of each chunk, with a CRC-32 of 0."""
    metadata_entries: list[tuple[ZipEntry, bytes]]
    """The place and the content of each metadata entry."""
    metadata: bytes
    """All bytes before the first chunk's header: the metadata entries with their headers."""
    directory: bytes
    """All bytes after the last chunk, with CRC-32s of 0 for the chunks."""
    crc_offsets: list[int]
    """The offset in `directory` of each chunk's CRC-32."""

    @property
    def end(self) -> int:
        """Return the offset at which the directory begins."""
        last = self.entries[-1] if self.entries else None
        return last.data_offset + last.size if last else len(self.metadata)

    @property
    def nbytes(self) -> int:
        """Return the size of the file."""
        return self.end + len(self.directory)

    def directory_with(self, crcs: Sequence[int]) -> bytes:
        """Return all bytes after the last chunk, given the CRC-32 of each chunk."""
        directory = bytearray(self.directory)
        for offset, crc in zip(self.crc_offsets, crcs, strict=True):
            CRC.pack_into(directory, offset, crc)
        return bytes(directory)


# A run saves the same tree many times.
@functools.lru_cache(maxsize=4)
def plan_file(layouts: tuple[ArrayLayout, ...], process_index: int) -> FilePlan:
    """Return the plan of one process's data file, which depends only on the layouts."""
    metadata = _metadata(layouts, process_index)
    owned = [
        (layout, number, position)
        for layout in layouts
        if process_index in layout.writers
        for number, position in enumerate(layout.positions())
        if layout.writers[number] == process_index
    ]
    entries = placed(
        itertools.chain(
            ((path, len(content)) for path, content in metadata.items()),
            (
                ("/".join([_node_path(layout.name), "c", *map(str, position)]), layout.chunk_nbytes)
                for layout, _, position in owned
            ),
        )
    )
    above, entries = entries[: len(metadata)], entries[len(metadata) :]
    crcs = [crc32(content) for content in metadata.values()]
    headers = map(local_header, above, crcs)
    directory, crc_offsets = central_directory([*above, *entries], crcs + [0] * len(entries))
    return FilePlan(
        chunks=[(layout.name, number) for layout, number, _ in owned],
        entries=entries,
        headers=[local_header(entry, 0) for entry in entries],
        metadata_entries=list(zip(above, metadata.values(), strict=True)),
        metadata=b"".join(itertools.chain(*zip(headers, metadata.values(), strict=True))),
        directory=directory,
        crc_offsets=crc_offsets[len(above) :],
    )


def _metadata(layouts: Sequence[ArrayLayout], process_index: int) -> dict[str, bytes]:
    """Return the metadata entries of this process's file: of arrays that it has chunks of, and their groups.

    Arrays without elements have no chunks; their metadata is in process 0's file.
    """
    mine = [layout for layout in layouts if process_index in (layout.writers or (0,))]
    by_path = {_node_path(layout.name): layout for layout in mine}
    groups = {path: json.dumps(_GROUP).encode() for path in _groups_above(by_path)}
    arrays = {f"{node}/{_METADATA}": _array_metadata(layout) for node, layout in by_path.items()}
    return groups | arrays


def placed(sizes: Iterable[tuple[str, int]]) -> list[ZipEntry]:
    """Return the places of entries with these paths and sizes, one after the other."""
    entries, offset = [], 0
    for path, size in sizes:
        shortest_header = _LOCAL.size + len(path.encode()) + _LOCAL_SIZES.size + _PADDING.size
        data_offset = -(-(offset + shortest_header) // ALIGNMENT) * ALIGNMENT
        entries.append(ZipEntry(path, size, offset, data_offset))
        offset = data_offset + size
    return entries


def local_header(entry: ZipEntry, crc: int) -> bytes:
    """Return the bytes from the entry's `header_offset` up to its `data_offset`, with padding."""
    path = entry.path.encode()
    extra = _LOCAL_SIZES.pack(1, 16, entry.size, entry.size)
    room = entry.data_offset - entry.header_offset - _LOCAL.size - len(path) - len(extra)
    extra += _PADDING.pack(0xD935, room - 4, ALIGNMENT).ljust(room, b"\0")
    common = (_VERSION, _UTF8_PATHS, _STORED, _MIDNIGHT, _NEW_YEAR_1980)
    sizes = (_IN_ZIP64_32, _IN_ZIP64_32)
    return _LOCAL.pack(b"PK\3\4", *common, crc, *sizes, len(path), len(extra)) + path + extra


def with_crc(header: bytes, crc: int) -> bytes:
    """Return a local header with another CRC-32."""
    return header[:LOCAL_CRC] + crc.to_bytes(4, "little") + header[LOCAL_CRC + 4 :]


def central_directory(entries: Sequence[ZipEntry], crcs: Sequence[int]) -> tuple[bytes, list[int]]:
    """Return the central directory with the records after it, and the offset in it of each entry's CRC-32."""
    start = entries[-1].data_offset + entries[-1].size
    headers = list(map(_central_header, entries, crcs))
    ends = list(itertools.accumulate(map(len, headers), initial=0))
    end_records = _end_records(len(entries), start, start + ends[-1])
    return b"".join([*headers, end_records]), [end + _CENTRAL_CRC for end in ends[:-1]]


def _central_header(entry: ZipEntry, crc: int) -> bytes:
    path = entry.path.encode()
    extra = _CENTRAL_SIZES.pack(1, 24, entry.size, entry.size, entry.header_offset)
    common = (_MADE_ON_UNIX, _VERSION, _UTF8_PATHS, _STORED, _MIDNIGHT, _NEW_YEAR_1980)
    sizes = (_IN_ZIP64_32, _IN_ZIP64_32)
    lengths = (len(path), len(extra), 0)  # there is no comment
    # The only disk; not known to be text.
    attributes = (0, 0, _ORDINARY_FILE, _IN_ZIP64_32)
    return _CENTRAL.pack(b"PK\1\2", *common, crc, *sizes, *lengths, *attributes) + path + extra


def _end_records(num_entries: int, start: int, end: int) -> bytes:
    """Return the three records at the end of a file whose central directory is from `start` to `end`."""
    directory = (num_entries, num_entries, end - start, start)
    zip64_end = _ZIP64_END.pack(b"PK\6\6", _ZIP64_END.size - 12, _MADE_ON_UNIX, _VERSION, 0, 0, *directory)
    locator = _ZIP64_LOCATOR.pack(b"PK\6\7", 0, end, 1)
    in_zip64 = (_IN_ZIP64_16, _IN_ZIP64_16, _IN_ZIP64_32, _IN_ZIP64_32)
    return zip64_end + locator + _END.pack(b"PK\5\6", 0, 0, *in_zip64, 0)


def _node_path(name: str) -> str:
    """Return the path of an array in the hierarchy.

    This is its name, with `%` escapes for segments that zarr or ZIP do not allow: an empty one (`%`), one of
    periods only (`%2E`), one that begins with `__` (`%5F_`), and `zarr.json`. It is unambiguous, because a
    `%` in a name always begins `%25` or `%2F`.
    """
    return "/".join(map(_node, name.split("/")))


def _groups_above(nodes: Iterable[str]) -> list[str]:
    """Return the metadata paths of all groups that contain the arrays at `nodes`, the root first."""
    above = {node[: cut.start()] for node in nodes for cut in re.finditer("/", node)}
    return [_METADATA, *(f"{group}/{_METADATA}" for group in sorted(above))]


def _array_metadata(layout: ArrayLayout) -> bytes:
    """Return the `zarr.json` of an array."""
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": layout.shape,
        "data_type": layout.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": layout.chunk_shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": _fill_value(layout.dtype),
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
    }
    return json.dumps(metadata).encode()


def _node(segment: str) -> str:
    segment = segment.replace("\0", "%00").replace("\\", "%5C")
    if not segment.strip("."):
        return segment.replace(".", "%2E") or "%"
    if segment.startswith("__"):
        return "%5F" + segment[1:]
    return "zarr%2Ejson" if segment == _METADATA else segment


def _fill_value(dtype: np.dtype) -> bool | int | float | list[float]:
    """Return the value of zero bytes. Zarr requires a fill value, though here no chunk is ever left out."""
    zero = np.frombuffer(bytes(dtype.itemsize), dtype)[0]
    if dtype.kind == "c":
        return [0.0, 0.0]
    if dtype.kind == "b":
        return False
    return int(zero) if "int" in dtype.name else float(zero)
