"""`manifest.json`: the record that makes a directory of data files a checkpoint.

It is written last, so the files that it names are complete. It is JSON in UTF-8, with one array on each line:

    {
    "format": "meshwright.checkpoint",
    "version": 1,
    "step": 800,
    "writer": {"meshwright": "0.1.0", "jax": "0.10.2", "processes": 2, "mesh": {"data": 2, "fsdp": 4}},
    "extra": {"data": {"position": 51200}, "scores": {"eval/loss": 0.31}},
    "prng_keys": {"rng": "threefry2x32"},
    "files": [{"name": "data-00000-of-00002.zarr.zip", "bytes": 33820}, ...],
    "arrays": {
    "params/w": {"shape": [64, 128], "dtype": "bfloat16", "chunk_shape": [32, 128],
                 "chunks": [[0, 512, 8192, 4062340125], [1, 512, 8192, 2094610987]]}
    },
    "crc32": 3140292718}

`chunks` has one entry for each chunk, in row-major order of the chunk grid: the number of the file, the
offset and the size in bytes of the chunk's raw data there, and the CRC-32 of that data. `mesh` is null if the
state was not sharded over a mesh. `prng_keys` names the arrays that are the data of typed PRNG keys, with the
keys' implementation; it may be left out if there are none. The last line holds the CRC-32 of all bytes before
it.

The checksum does not prove who wrote the manifest, so all values are checked before they are used. Memory,
offsets and file plans derived from it are then bounded by the size of the manifest and of the files.
"""

import itertools
import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshwright.base._internal import Directory, check_depth, collector_paused, parse_json
from meshwright.checkpoints._format._layout import DTYPES, ArrayLayout
from meshwright.errors import CheckpointError, DamagedError

MANIFEST = "manifest.json"
"""The file that makes a directory a checkpoint; it is written last."""
_FORMAT = "meshwright.checkpoint"
_VERSION = 1

_FILE_NAME = re.compile(r"(?!\.\.?(/|$))[^/\0]+(/(?!\.\.?$)[^/\0]+)?")
"""A file beside the manifest or, in object stores, in a folder beside it."""
_MOST_DIMS = 64  # NumPy's own limit
_LONGEST_NAME = 1 << 14  # bytes; a path in a ZIP file has less than 64 KiB, and an escape triples a byte
_LARGEST = 1 << 62  # bytes of an array, and the limit of any number but a checksum


class ChunkPlace(NamedTuple):
    """The place of a chunk's data: file number, offset, size and CRC-32, in the order of the format."""

    file: int
    offset: int
    size: int
    crc32: int


class DataFile(NamedTuple):
    """The data file of a process."""

    name: str
    nbytes: int


class SavedArray(NamedTuple):
    """An array in the manifest; the fields are named as in the format."""

    shape: tuple[int, ...]
    dtype: str
    chunk_shape: tuple[int, ...]
    chunks: tuple[ChunkPlace, ...]

    def checksum(self) -> str:
        """Return the CRC-32 of the CRC-32s of all chunks."""
        return f"CRC-32 {zlib.crc32(str([chunk.crc32 for chunk in self.chunks]).encode()):08x}"


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`."""

    step: int
    writer: Mapping[str, Any]
    extra: Any
    files: tuple[DataFile, ...] = ()
    arrays: Mapping[str, SavedArray] = field(default_factory=dict)
    prng_keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def scores(self) -> dict[str, float]:
        """Return the scores in `extra`, without values that are no numbers."""
        saved = self.extra.get("scores")
        items = saved.items() if isinstance(saved, Mapping) else ()
        return {name: value for name, value in items if type(value) in (int, float)}

    def layouts(self) -> list[ArrayLayout]:
        """Return the layouts of the arrays; the writer of a chunk is the number of its file."""
        return [
            ArrayLayout(
                name,
                array.shape,
                np.dtype(array.dtype),
                array.chunk_shape,
                writers=tuple(chunk.file for chunk in array.chunks),
            )
            for name, array in self.arrays.items()
        ]


@collector_paused()
def manifest_text(manifest: Manifest) -> bytes:
    """Return the content of `manifest.json`."""
    head = {
        "format": _FORMAT,
        "version": _VERSION,
        "step": manifest.step,
        "writer": manifest.writer,
        "extra": manifest.extra,
        "prng_keys": manifest.prng_keys,
        "files": [{"name": file.name, "bytes": file.nbytes} for file in manifest.files],
    }
    arrays = {name: array._asdict() for name, array in manifest.arrays.items()}
    return _sealed(f'{{\n{_lines(head)},\n"arrays": {{\n{_lines(arrays)}\n}},\n'.encode())


def read_manifest(directory: Directory) -> Manifest:
    """Return the manifest of a checkpoint."""
    path = directory / MANIFEST
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        if isinstance(directory, Path) and os.path.lexists(directory):
            raise _damaged(path, "it is missing") from None
        raise CheckpointError(f"{directory} is not a checkpoint: it has no {MANIFEST}.") from None
    fields = _checked(content, path)
    return Manifest(
        step=fields["step"],
        writer=fields["writer"],
        extra=fields["extra"],
        prng_keys=fields.get("prng_keys", {}),
        files=tuple(DataFile(file["name"], file["bytes"]) for file in fields["files"]),
        arrays={name: _saved_array(array) for name, array in fields["arrays"].items()},
    )


def _lines(fields: Mapping[str, Any]) -> str:
    return ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items())


def _checked(content: bytes, path: Directory) -> dict[str, Any]:
    """Return the fields of a manifest, after checking its checksum, format, version and values.

    The checksum is checked first, because it is the same in all versions, and a flipped bit can change the
    version.
    """
    try:
        fields = parse_json(content)
    except ValueError as error:
        raise _damaged(path, f"it is not JSON ({error})") from None
    if not isinstance(fields, dict) or "crc32" not in fields:
        raise _damaged(path, "it is not the manifest of a Meshwright checkpoint")
    # The checksum comes before format and version, as a flipped bit can change both.
    if content != _sealed(content[: content.rfind(b"\n", 0, -1) + 1]):
        raise _damaged(path, "its checksum is not that of its content")
    if fields.get("format") != _FORMAT:
        raise CheckpointError(f"{path} is not the manifest of a Meshwright checkpoint.")
    version, writer = fields.get("version"), fields.get("writer")
    if type(version) is not int or version < 1:
        raise _damaged(path, f"its format version is {version!r:.40}")
    if version > _VERSION:
        wrote = writer.get("meshwright") if isinstance(writer, dict) else None
        raise CheckpointError(
            f"{path} has format version {version}, but this Meshwright reads versions up to {_VERSION}. "
            f"It was written by Meshwright {wrote!s:.40}: install that version or a later one."
        )
    if wrong := next(_wrong(fields), None):
        raise _damaged(path, wrong)
    return fields


def _sealed(body: bytes) -> bytes:
    """Return a manifest with its last line, the checksum, added."""
    return body + f'"crc32": {zlib.crc32(body)}}}\n'.encode()


def _saved_array(fields: Mapping[str, Any]) -> SavedArray:
    return SavedArray(
        shape=tuple(fields["shape"]),
        dtype=fields["dtype"],
        chunk_shape=tuple(fields["chunk_shape"]),
        chunks=tuple(ChunkPlace(*chunk) for chunk in fields["chunks"]),
    )


def _damaged(path: Directory, how: str) -> DamagedError:
    return DamagedError(f"{path} is damaged: {how}. Copy it again, or use another checkpoint.")


def _wrong(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield the first error in the fields; each check relies on those before it."""
    if not _is_number(fields.get("step")):
        yield f"step is {_cited(fields.get('step'))}"
    for name in ("writer", "extra", "prng_keys", "arrays"):
        value = fields.get(name, {} if name == "prng_keys" else None)
        if not isinstance(value, dict):
            yield f"{name} is {_cited(value)}"
        elif name != "arrays" and (too_deep := _too_deep(value)):
            yield f"in {name}, {too_deep}"
    yield from _wrong_files(fields.get("files"))
    for name, impl in fields.get("prng_keys", {}).items():
        if name not in fields["arrays"] or not isinstance(impl, str):
            yield f"prng_keys says that {_cited(name)} holds keys of {_cited(impl)}"
    free_nbytes = [file["bytes"] for file in fields["files"]]
    for name, array in fields["arrays"].items():
        if not _is_name(name):
            yield f"an array is called {_cited(name)}"
        if problem := next(_wrong_array(array, fields["files"], free_nbytes), None):
            yield f"of the array {_cited(name)}, {problem}"


def _wrong_files(files: Any) -> Iterator[str]:
    if not isinstance(files, list):
        yield f"files is {_cited(files)}"
    for file in files:
        entry = file if isinstance(file, dict) else {}
        if not isinstance(entry.get("name"), str) or not _FILE_NAME.fullmatch(entry["name"]):
            yield f"a file is called {_cited(entry.get('name'))}"
        if not _is_number(entry.get("bytes")) or not entry["bytes"]:
            yield f"the file {_cited(entry['name'])} has {_cited(entry.get('bytes'))} bytes"
    if len({file["name"] for file in files}) < len(files):
        yield "two files have one name"


def _wrong_array(array: Any, files: Sequence[Mapping[str, Any]], free_nbytes: list[int]) -> Iterator[str]:
    """Yield the first error of one array; `free_nbytes` has the bytes of each file that no earlier array
    uses.
    """
    if not isinstance(array, dict) or not {"shape", "dtype", "chunk_shape", "chunks"} <= array.keys():
        yield f"there is only {_cited(array)}"
    shape, chunk_shape, chunks = array["shape"], array["chunk_shape"], array["chunks"]
    if not isinstance(array["dtype"], str) or array["dtype"] not in DTYPES:
        yield f"dtype is {_cited(array['dtype'])}"
    if not _is_shape(shape):
        yield f"shape is {_cited(shape)}"
    if not _is_shape(chunk_shape) or not all(chunk_shape) or len(chunk_shape) != len(shape):
        yield f"chunk_shape is {_cited(chunk_shape)}, and shape {_cited(shape)}"
    if any(size % chunk for size, chunk in zip(shape, chunk_shape, strict=True)):
        yield f"chunk_shape is {chunk_shape}, which does not divide shape, {shape}"
    itemsize = np.dtype(array["dtype"]).itemsize
    if math.prod(max(1, size) for size in shape) * itemsize > _LARGEST:
        yield f"shape is {shape}, which is larger than any memory"
    count = math.prod(size // chunk for size, chunk in zip(shape, chunk_shape, strict=True))
    if not isinstance(chunks, list) or len(chunks) != count:
        yield f"chunks is {_cited(chunks)}, but should have {count} entries"
    yield from _wrong_chunks(chunks, math.prod(chunk_shape) * itemsize, files, free_nbytes)


def _wrong_chunks(
    chunks: list[Any], nbytes: int, files: Sequence[Mapping[str, Any]], free_nbytes: list[int]
) -> Iterator[str]:
    if set(map(type, chunks)) - {list} or set(map(len, chunks)) - {4}:
        yield f"chunks has an entry that is not [file, offset, size, CRC-32]: {_cited(chunks)}"
    if set(map(type, itertools.chain.from_iterable(chunks))) - {int}:
        yield f"chunks has an entry with a value that is not a number: {_cited(chunks)}"
    for number, (file, offset, size, crc) in enumerate(chunks):
        if not 0 <= file < len(files):
            yield f"chunk {number} is in file {file} of {len(files)}"
        if size != nbytes or not 0 <= offset <= files[file]["bytes"] - size or not 0 <= crc < 1 << 32:
            yield (
                f"chunk {number} has {size} bytes at offset {offset} and the CRC-32 {crc}; it should have "
                f"{nbytes} bytes within a file of {files[file]['bytes']}"
            )
        free_nbytes[file] -= size
        if free_nbytes[file] < 0:
            yield f"chunk {number} has more bytes than are left in its file: it would overlap others"


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _MOST_DIMS and all(map(_is_number, value))


def _is_name(name: str) -> bool:
    try:
        return len(name.encode()) < _LONGEST_NAME
    except UnicodeEncodeError:
        # Half of a surrogate pair, which JSON allows.
        return False


def _too_deep(value: Any) -> str | None:
    try:
        check_depth(value)
    except ValueError as error:
        return str(error)
    return None


def _cited(value: Any) -> str:
    """Return a short text for a value of any size, for messages."""
    if isinstance(value, list | dict):
        kind = "a list" if isinstance(value, list) else "an object"
        items = value.values() if isinstance(value, dict) else value
        is_long = len(value) > 8 or any(isinstance(item, list | dict) for item in items)
        return f"{kind} of {len(value)}" if is_long else repr(value)
    return repr(value) if len(repr(value)) < 80 else f"{value!r:.80}…"
