"""Reads a LevelDB table: an immutable file of sorted keys with values.

    data blocks, then metadata blocks, then the index, whose values are the places of the data blocks
      entries               number of bytes shared with the previous key, number of further bytes of the key,
                            length of the value (all varints), the further bytes of the key, the value
      restarts              offsets of entries that share nothing, 4 bytes each, and their number, 4 bytes
      compression, CRC      1 byte: 0 for none, 1 for Snappy; 4 bytes: the masked CRC-32C of all before
    footer, 48 bytes        places of metadata and index (offset and size, varints), and a magic number

LevelDB's own library is not used, because it opens databases of many files, and writes logs into them.

Source: github.com/google/leveldb/blob/main/doc/table_format.md.
"""

from collections.abc import Iterator

from meshwright.base._internal import import_extra, masked_crc32c
from meshwright.checkpoints._formats.readers._file import File
from meshwright.errors import UsageError

MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")

_FOOTER, _TRAILER = 48, 5
_NONE, _SNAPPY = 0, 1
_MOST = 64  # limit of the ratio of decompressed to compressed bytes; Snappy's own maximum is 21


def is_table(file: File) -> bool:
    """Return whether a file ends like a table."""
    return file.nbytes >= _FOOTER and file[file.nbytes - 8 : file.nbytes].tobytes() == MAGIC


def read_table(file: File) -> dict[bytes, bytes]:
    """Return the keys and values of a table."""
    if not is_table(file):
        raise file.damaged("it does not end as a LevelDB table does")
    footer = file[file.nbytes - _FOOTER : file.nbytes].tobytes()
    try:
        metadata, position = _handle(footer, 0)
        index, _ = _handle(footer, position)
        _block(file, *metadata)  # empty, but it may be damaged
        blocks = [_handle(value, 0)[0] for _, value in _entries(_block(file, *index))]
        return {key: value for block in blocks for key, value in _entries(_block(file, *block))}
    except UsageError:  # a package is missing; it is a ValueError, too
        raise
    except (ValueError, IndexError) as error:
        raise file.damaged(str(error)) from None


def _handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    """Return the offset and the size of a block, and the position after them."""
    offset, position = _varint(data, position)
    size, position = _varint(data, position)
    return (offset, size), position


def _block(file: File, offset: int, size: int) -> bytes:
    stored = file[offset : offset + size + _TRAILER]
    if masked_crc32c(stored[:-4]) != stored[-4:].tobytes():
        raise ValueError(f"the block at offset {offset} does not match its CRC-32C")
    content, compression = stored[:size].tobytes(), int(stored[size])
    if compression not in (_NONE, _SNAPPY):
        raise ValueError(f"the block at offset {offset} has an unknown compression, number {compression}")
    return _decompressed(file, content) if compression == _SNAPPY else content


def _decompressed(file: File, data: bytes) -> bytes:
    """Return the content of a Snappy block, which TensorFlow wrote up to version 1.1."""
    cramjam = import_extra("cramjam", extra="t5", what=f"{file.path}, which Snappy compressed,")
    try:
        if cramjam.snappy.decompress_raw_len(data) > _MOST * len(data):
            raise ValueError("a Snappy block claims a length that is not possible")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise ValueError(str(error)) from None


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    num_restarts = int.from_bytes(block[-4:], "little")
    end, position, key = len(block) - 4 * (num_restarts + 1), 0, b""
    while position < end:
        shared, position = _varint(block, position)
        rest, position = _varint(block, position)
        length, position = _varint(block, position)
        key = key[:shared] + block[position : position + rest]
        yield key, block[position + rest : position + rest + length]
        position += rest + length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the varint at `position`, and the position after it.

    Each byte has seven bits of the number, the lowest first. All bytes but the last have the eighth bit set.
    """
    number = shift = 0
    while position < len(data):
        octet = data[position]
        number |= (octet & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if octet < 0x80:
            return number, position
    raise ValueError("it ends within a number")
