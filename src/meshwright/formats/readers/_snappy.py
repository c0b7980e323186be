"""Snappy: what blocks of a LevelDB table may be compressed with.

    length of the data, a varint
    tag, of which the two lowest bits say what follows
      0   as many bytes as the tag says, or a number of 1 to 4 bytes behind it
      1   4 to 11 bytes, repeated from up to 2 KiB back
      2   1 to 64 bytes, repeated from up to 64 KiB back
      3   the same from up to 4 GiB back

Source: github.com/google/snappy/blob/main/format_description.txt.
"""

from meshwright.formats.readers._varint import varint

_LONG = 60


def decompressed(data: bytes) -> bytes:
    """Return the data that was compressed.

    Raises:
      ValueError: It was not, or is damaged.
    """
    length, position = varint(data, 0)
    out = bytearray()
    while position < len(data) and len(out) <= length:
        tag = data[position]
        take = _repeat if tag & 3 else _literal
        position = take(out, data, position + 1, tag)
    if len(out) != length:
        raise ValueError(f"snappy data of {len(out)} bytes should have {length}")
    return bytes(out)


def _literal(out: bytearray, data: bytes, position: int, tag: int) -> int:
    length = (tag >> 2) + 1
    if length > _LONG:
        size = length - _LONG
        length = int.from_bytes(data[position : position + size], "little") + 1
        position += size
    out += data[position : position + length]
    return position + length


def _repeat(out: bytearray, data: bytes, position: int, tag: int) -> int:
    kind = tag & 3
    size = 1 << (kind - 1)
    distance = int.from_bytes(data[position : position + size], "little")
    length = (tag >> 2) + 1
    if kind == 1:
        length, distance = (tag >> 2 & 7) + 4, distance | tag >> 5 << 8
    if not 0 < distance <= len(out):
        raise ValueError(f"snappy data repeats from {distance} bytes back, where there are {len(out)}")
    piece = out[-distance:][:length]  # which repeats itself where more is wanted than there is
    out += (piece * -(-length // len(piece)))[:length]
    return position + size
