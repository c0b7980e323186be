"""TensorFlow's checkpoints, of its second format, without TensorFlow.

    model.ckpt-100.index                   a LevelDB table: a header under "", and an entry for each variable
    model.ckpt-100.data-00000-of-00002     variables as they lie in memory, row-major, one after the other
    checkpoint                             text: which of those in the directory is the newest

Header and entries are protocol buffers: fields, each a number and a kind, and then a varint (kind 0), so many
bytes (2), or 8 or 4 bytes (1, 5).

Source: `tensor_bundle.proto`, `tensor_shape.proto` and `types.proto` of github.com/tensorflow/tensorflow.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from meshwright.arrays import Index, LazyArray
from meshwright.crc32c import masked_crc32c
from meshwright.errors import CheckpointError
from meshwright.formats.readers._file import File
from meshwright.formats.readers._leveldb import read_table
from meshwright.formats.readers._raw import raw_array
from meshwright.formats.readers._varint import varint
from meshwright.storage import Directory

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
    """Return the variables whose index is `{prefix}.index`, by name; what is text is left out.

    What is read whole is compared with its CRC-32C. A part cannot be.

    Raises:
      DamagedError: The index is missing or damaged; when it is read, a shard is missing, ends too soon, or
        is not what was written.
      CheckpointError: It is big-endian, or a variable is of a kind that is not read; all are listed.
    """
    file = File(prefix.parent / f"{prefix.name}.index")
    table = read_table(file)
    try:
        header = _fields(table.pop(_HEADER))
        entries = {key.decode(): _Entry.parse(value) for key, value in table.items()}
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise file.damaged(f"it is no index of TensorFlow: {error!r}") from None
    if _number(header, 2):
        raise CheckpointError(f"{file.path} is of a big-endian machine, of which none are read.")
    arrays = {name: entry for name, entry in entries.items() if entry.dtype != _TEXT}
    problems = [f"{name}: {entry.problem}" for name, entry in arrays.items() if entry.problem]
    if problems:
        raise CheckpointError(f"{file.path} cannot be read:\n  " + "\n  ".join(problems))
    shards = _Shards(prefix, _number(header, 1))
    return {name: _array(name, entry, shards) for name, entry in arrays.items()}


@dataclass(frozen=True)
class _Entry:
    """What the index says of one variable."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    nbytes: int
    masked_crc: bytes | None
    is_sliced: bool

    @classmethod
    def parse(cls, message: bytes) -> "_Entry":
        fields = _fields(message)
        dims = _fields(fields[2][0]).get(2, []) if 2 in fields else []
        return cls(
            dtype=_number(fields, 1),
            shape=tuple(_number(_fields(dim), 1) for dim in dims),
            shard=_number(fields, 3),
            offset=_number(fields, 4),
            nbytes=_number(fields, 5),
            masked_crc=fields[6][0].to_bytes(4, "little") if 6 in fields else None,
            is_sliced=7 in fields,
        )

    @property
    def problem(self) -> str | None:
        """Return why it cannot be read, or None."""
        if self.is_sliced:
            return "it was saved in slices. Save it with a partitioner that leaves variables whole."
        if self.dtype not in _DTYPES:
            return f"it is of type {self.dtype} of TensorFlow, which is not read."
        expected = math.prod(self.shape) * np.dtype(_DTYPES[self.dtype]).itemsize
        if self.nbytes != expected:
            return f"it has {self.nbytes} bytes, where its shape, {self.shape}, asks for {expected}."
        return None


@dataclass
class _Shards:
    """The files with the data, each opened when some of it is read."""

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
    """What a `LazyArray` of a variable reads with."""

    name: str
    entry: _Entry
    shards: _Shards

    def __call__(self, index: Index) -> np.ndarray:
        return self.parts([index])[0]

    def parts(self, indices: Sequence[Index]) -> list[np.ndarray]:
        """Return several parts; what is the whole variable is compared with its checksum."""
        entry, file = self.entry, self.shards[self.entry.shard]
        found = raw_array(file, entry.offset, entry.shape, np.dtype(_DTYPES[entry.dtype])).read_parts(indices)
        for part in found:
            if part.shape == entry.shape and entry.masked_crc is not None:
                self._check(part, file)
        return found

    def _check(self, whole: np.ndarray, file: File) -> None:
        if masked_crc32c(whole.reshape(-1).view(np.uint8)) != self.entry.masked_crc:
            raise file.damaged(f"the CRC-32C of {self.name} is another than the index has")


def _array(name: str, entry: _Entry, shards: _Shards) -> LazyArray:
    return LazyArray(entry.shape, np.dtype(_DTYPES[entry.dtype]), _Variable(name, entry, shards))


def _fields(message: bytes) -> Mapping[int, list[Any]]:
    """Return the values of a message, by the numbers of their fields."""
    fields: dict[int, list[Any]] = {}
    position = 0
    while position < len(message):
        key, position = varint(message, position)
        value, position = _value(message, position, key & 7)
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _value(message: bytes, position: int, kind: int) -> tuple[Any, int]:
    match kind:
        case 0:
            return varint(message, position)
        case 1:
            return struct.unpack_from("<Q", message, position)[0], position + 8
        case 2:
            length, position = varint(message, position)
            return message[position : position + length], position + length
        case 5:
            return struct.unpack_from("<I", message, position)[0], position + 4
    raise ValueError(f"a field of kind {kind}")


def _number(fields: Mapping[int, list[Any]], field: int) -> int:
    """Return a number, which is not written where it is 0."""
    return fields.get(field, [0])[0]
