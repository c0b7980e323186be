"""An ordinary ZIP file whose entries are stored, not deflated, and start on 64-byte boundaries.

    │ local header: 30 bytes │ path │ extra: ZIP64 sizes │ extra: padding │   one of these
    │ data, from the next multiple of 64                                  │   for each entry
    ┆                                                                     ┆
    │ central directory: 46 bytes │ path │ extra: ZIP64 sizes and offset  │   for each entry
    │ ZIP64 end record: 56 bytes │ ZIP64 locator: 20 │ end record: 22     │

Sizes and offsets stand in the ZIP64 extra fields always, so a file of 5 TB is written by the same
code as one of 5 kB. All sizes are known before the first byte is written: `plan` decides every
offset. Each entry carries the CRC-32 of its data. Two equal contents give two equal files: the
time stamps are those of the ZIP epoch.

Source: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3 (records) and 4.5.3 (ZIP64). The padding is the
extra field 0xD935 of Android's zipalign: the alignment, then zeros.
"""

import itertools
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

ALIGNMENT = 64  # of XLA's CPU buffers, and a cache line

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_ZIP64_END = struct.Struct("<4sQ2H2L4Q")
_ZIP64_LOCATOR = struct.Struct("<4sLQL")
_END = struct.Struct("<4s4H2LH")
_LOCAL_SIZES = struct.Struct("<2H2Q")  # the ZIP64 extra field of a local header
_CENTRAL_SIZES = struct.Struct("<2H3Q")  # and of the central directory
_PADDING = struct.Struct("<3H")
CRC = struct.Struct("<L")

_VERSION = 45  # the first with ZIP64
_MADE_ON_UNIX = 3 << 8 | _VERSION
_UTF8_PATHS = 0x800
_STORED = 0
_MIDNIGHT, _NEW_YEAR_1980 = 0, 1 << 5 | 1
LOCAL_CRC, _CENTRAL_CRC = 14, 16  # where the CRC-32 stands in a header
_ORDINARY_FILE = 0o100644 << 16  # what `unzip` gives the files it makes
_IN_ZIP64_16, _IN_ZIP64_32 = 0xFFFF, 0xFFFFFFFF


class Entry(NamedTuple):
    """Where one entry lies; `size` is that of its data, all are in bytes."""

    path: str
    size: int
    header_offset: int
    data_offset: int


def plan(sizes: Iterable[tuple[str, int]]) -> list[Entry]:
    """Place entries of the given paths and sizes one after the other."""
    entries, offset = [], 0
    for path, size in sizes:
        shortest_header = _LOCAL.size + len(path.encode()) + _LOCAL_SIZES.size + _PADDING.size
        data_offset = _round_up(offset + shortest_header)
        entries.append(Entry(path, size, offset, data_offset))
        offset = data_offset + size
    return entries


def local_header(entry: Entry, crc: int) -> bytes:
    """Return what stands from the entry's `header_offset` to its `data_offset`, padding included."""
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


def directory(entries: Sequence[Entry], crcs: Sequence[int]) -> tuple[bytes, list[int]]:
    """Return what stands after the last entry, and where in it the CRC-32 of each entry stands.

    It is the central directory, and the records that close the file.
    """
    start = entries[-1].data_offset + entries[-1].size
    headers = list(map(_central_header, entries, crcs))
    ends = list(itertools.accumulate(map(len, headers), initial=0))
    end_records = _end_records(len(entries), start, start + ends[-1])
    return b"".join([*headers, end_records]), [end + _CENTRAL_CRC for end in ends[:-1]]


def _round_up(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _central_header(entry: Entry, crc: int) -> bytes:
    path = entry.path.encode()
    extra = _CENTRAL_SIZES.pack(1, 24, entry.size, entry.size, entry.header_offset)
    common = (_MADE_ON_UNIX, _VERSION, _UTF8_PATHS, _STORED, _MIDNIGHT, _NEW_YEAR_1980)
    sizes = (_IN_ZIP64_32, _IN_ZIP64_32)
    lengths = (len(path), len(extra), 0)  # there is no comment
    place = (0, 0, _ORDINARY_FILE, _IN_ZIP64_32)  # the only disk; not known to be text
    return _CENTRAL.pack(b"PK\1\2", *common, crc, *sizes, *lengths, *place) + path + extra


def _end_records(num_entries: int, start: int, end: int) -> bytes:
    """Return the three records that close a file whose central directory is at `start` to `end`."""
    directory = (num_entries, num_entries, end - start, start)
    zip64_end = _ZIP64_END.pack(b"PK\6\6", _ZIP64_END.size - 12, _MADE_ON_UNIX, _VERSION, 0, 0, *directory)
    locator = _ZIP64_LOCATOR.pack(b"PK\6\7", 0, end, 1)
    in_zip64 = (_IN_ZIP64_16, _IN_ZIP64_16, _IN_ZIP64_32, _IN_ZIP64_32)
    return zip64_end + locator + _END.pack(b"PK\5\6", 0, 0, *in_zip64, 0)
