"""Reads TensorFlow's checkpoints (version 2 of the format) without TensorFlow.

    model.ckpt-100.index                   a LevelDB table: a header under "", and an entry for each variable
    model.ckpt-100.data-00000-of-00002     the variables' bytes, row-major, one after the other
    checkpoint                             text that names the newest checkpoint in the directory

The header and the entries are protocol buffers.

Source: `tensor_bundle.proto`, `tensor_shape.proto` and `types.proto` of github.com/tensorflow/tensorflow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import Any

import numpy as np

from meshwright.base._internal import Directory, masked_crc32c, protobufs
from meshwright.checkpoints._arrays._lazy import Index, LazyArray
from meshwright.checkpoints._formats.readers._file import File
from meshwright.checkpoints._formats.readers._leveldb import read_table
from meshwright.checkpoints._formats.readers._raw import raw_array
from meshwright.errors import CheckpointError

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
        found = raw_array(file, entry.offset, entry.shape, np.dtype(_DTYPES[entry.dtype])).read_parts(indices)
        for part in found:
            if part.shape == entry.shape and entry.masked_crc is not None:
                self._check(part, file)
        return found

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
