"""Reads TensorFlow's checkpoints (version 2 of the format) without TensorFlow.

    model.ckpt-100.index                   a LevelDB table: a header under "", and an entry for each variable
    model.ckpt-100.data-00000-of-00002     the variables' bytes, row-major, one after the other
    checkpoint                             text that names the newest checkpoint in the directory

The header and the entries are protocol buffers.

A LevelDB table is an immutable file of sorted keys with values:

    data blocks, then metadata blocks, then the index, whose values are the places of the data blocks
      entries               number of bytes shared with the previous key, number of further bytes of the key,
                            length of the value (all varints), the further bytes of the key, the value
      restarts              offsets of entries that share nothing, 4 bytes each, and their number, 4 bytes
      compression, CRC      1 byte: 0 for none, 1 for Snappy; 4 bytes: the masked CRC-32C of all before
    footer, 48 bytes        places of metadata and index (offset and size, varints), and a magic number

LevelDB's own library is not used, because it opens databases of many files, and writes logs into them.

Sources: `tensor_bundle.proto`, `tensor_shape.proto` and `types.proto` of github.com/tensorflow/tensorflow;
  github.com/google/leveldb/blob/main/doc/table_format.md.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import Any

import numpy as np

from meshwright.base._internal import Directory, import_extra, masked_crc32c, protobufs
from meshwright.checkpoints._arrays._lazy import Index, LazyArray
from meshwright.checkpoints._formats.readers._file import File, raw_array
from meshwright.errors import CheckpointError, UsageError

MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")

_FOOTER, _TRAILER = 48, 5
_NONE, _SNAPPY = 0, 1
# Limit of the ratio of decompressed to compressed bytes; Snappy's own maximum is 21.
_MOST = 64


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
        # The metadata block is empty, but may be damaged.
        _block(file, *metadata)
        blocks = [_handle(value, 0)[0] for _, value in _entries(_block(file, *index))]
        return {key: value for block in blocks for key, value in _entries(_block(file, *block))}
    except UsageError:
        # A missing package raises a UsageError, which is a ValueError, too.
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
    cramjam = import_extra("cramjam", extra="t5", needed_by=f"{file.path}, which Snappy compressed,")
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


_DTYPES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    8: "complex64",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    22: "uint32",
    23: "uint64",
}
_TEXT = 7
_HEADER = b""


def read_bundle(prefix: Directory) -> dict[str, LazyArray]:
    """Return the variables in `{prefix}.index` by name, without those that hold text.

    A variable that is read as a whole is compared with its CRC-32C. Parts cannot be.
    """
    file = File(prefix.parent / f"{prefix.name}.index")
    from google.protobuf.message import DecodeError

    table = read_table(file)
    try:
        header = _messages()["Header"].FromString(table.pop(_HEADER))
        entries = {key.decode(): _Entry.parse(value) for key, value in table.items()}
    except (ValueError, KeyError, DecodeError) as error:
        raise file.damaged(f"it is not an index of TensorFlow: {error!r}") from None
    if header.endianness:
        raise CheckpointError(f"{file.path} is big-endian, which is not supported.")
    arrays = {name: entry for name, entry in entries.items() if entry.dtype != _TEXT}
    problems = [f"{name}: {entry.problem}" for name, entry in arrays.items() if entry.problem]
    if problems:
        raise CheckpointError(f"{file.path} cannot be read:\n  " + "\n  ".join(problems))
    shards = _Shards(prefix, header.num_shards)
    return {
        name: LazyArray(entry.shape, np.dtype(_DTYPES[entry.dtype]), _Variable(name, entry, shards))
        for name, entry in arrays.items()
    }


@dataclass(frozen=True)
class _Entry:
    """The index's entry of a variable."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    nbytes: int
    masked_crc: bytes | None
    is_sliced: bool

    @classmethod
    def parse(cls, message: bytes) -> "_Entry":
        entry = _messages()["Entry"].FromString(message)
        return cls(
            dtype=entry.dtype,
            shape=tuple(dim.size for dim in entry.shape.dim),
            shard=entry.shard_id,
            offset=entry.offset,
            nbytes=entry.size,
            masked_crc=entry.crc32c.to_bytes(4, "little") if entry.HasField("crc32c") else None,
            is_sliced=bool(entry.slices),
        )

    @property
    def problem(self) -> str | None:
        """Return why the variable cannot be read; None if it can."""
        if self.is_sliced:
            return "it was saved in slices. Save it with a partitioner that does not split variables."
        if self.dtype not in _DTYPES:
            return f"its TensorFlow type, number {self.dtype}, is not supported."
        expected = math.prod(self.shape) * np.dtype(_DTYPES[self.dtype]).itemsize
        if self.nbytes != expected:
            return f"it has {self.nbytes} bytes, but its shape {self.shape} needs {expected}."
        return None


@dataclass
class _Shards:
    """The data files, each opened when it is first read."""

    prefix: Directory
    number: int
    opened: dict[int, File] = field(default_factory=dict)
    lock: Any = field(default_factory=Lock)

    def __getitem__(self, shard: int) -> File:
        with self.lock:
            if shard not in self.opened:
                name = f"{self.prefix.name}.data-{shard:05d}-of-{self.number:05d}"
                self.opened[shard] = File(self.prefix.parent / name)
            return self.opened[shard]


@dataclass(frozen=True)
class _Variable:
    """The `read` of a variable's `LazyArray`."""

    name: str
    entry: _Entry
    shards: _Shards

    def __call__(self, index: Index) -> np.ndarray:
        return self.parts([index])[0]

    def parts(self, indices: Sequence[Index]) -> list[np.ndarray]:
        """Return several parts; one that is the whole variable is compared with its checksum."""
        entry, file = self.entry, self.shards[self.entry.shard]
        parts = raw_array(file, entry.offset, entry.shape, np.dtype(_DTYPES[entry.dtype])).read_parts(indices)
        for part in parts:
            if part.shape == entry.shape and entry.masked_crc is not None:
                self._check(part, file)
        return parts

    def _check(self, whole: np.ndarray, file: File) -> None:
        if masked_crc32c(whole.reshape(-1).view(np.uint8)) != self.entry.masked_crc:
            raise file.damaged(f"the CRC-32C of {self.name} is not the one in the index")


@cache
def _messages() -> dict[str, Any]:
    """Return the message types of an index, with unsigned numbers, so that damaged ones are not negative."""
    return protobufs.messages(
        "tensor_bundle",
        {
            "Header": ("uint32 num_shards = 1", "uint32 endianness = 2"),
            "Entry": (
                "uint32 dtype = 1",
                "Shape shape = 2",
                "uint32 shard_id = 3",
                "uint64 offset = 4",
                "uint64 size = 5",
                "oneof fixed32 crc32c = 6",
                "repeated bytes slices = 7",
            ),
            "Shape": ("repeated Dim dim = 2",),
            "Dim": ("uint64 size = 1",),
        },
    )
