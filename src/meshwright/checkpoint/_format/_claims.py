"""What a manifest must say before any of it is believed: its checksum proves nothing, as all can make one.

What follows from it (memory, places in files, the plan of a file) is then bounded by the size of the manifest
and, when they are opened, of the files.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from meshwright.checkpoint._format import _zarr
from meshwright.documents import check_depth

_FILE_NAME = re.compile(r"(?!\.\.?(/|$))[^/\0]+(/(?!\.\.?$)[^/\0]+)?")
"""A file beside the manifest or, as of saves into object stores, in a folder beside it."""
_MOST_DIMS = 64  # NumPy's own limit
_LONGEST_NAME = 1 << 14  # bytes: a path in a ZIP file has less than 64 KiB, and escapes take three for one
_LARGEST = 1 << 62  # bytes of an array, and any number that is no checksum


def wrong_claim(fields: Mapping[str, Any]) -> str | None:
    """Return what a manifest says that cannot be, or None."""
    return next(_wrong(fields), None)


def _wrong(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong; all that comes before something is right when that is looked at."""
    if not _is_number(fields.get("step")):
        yield f"step is {_cited(fields.get('step'))}"
    for name in ("writer", "extra", "prng_keys", "arrays"):
        said = fields.get(name, {} if name == "prng_keys" else None)
        if not isinstance(said, dict):
            yield f"{name} is {_cited(said)}"
        elif name != "arrays" and (too_deep := _too_deep(said)):
            yield f"in {name}, {too_deep}"
    yield from _wrong_files(fields.get("files"))
    for name, impl in fields.get("prng_keys", {}).items():
        if name not in fields["arrays"] or not isinstance(impl, str):
            yield f"prng_keys says that {_cited(name)} holds keys of {_cited(impl)}"
    left = [file["bytes"] for file in fields["files"]]
    for name, array in fields["arrays"].items():
        if not _is_name(name):
            yield f"an array is called {_cited(name)}"
        if found := next(_wrong_array(array, fields["files"], left), None):
            yield f"of the array {_cited(name)}, {found}"


def _wrong_files(files: Any) -> Iterator[str]:
    if not isinstance(files, list):
        yield f"files is {_cited(files)}"
    for file in files:
        said = file if isinstance(file, dict) else {}
        if not isinstance(said.get("name"), str) or not _FILE_NAME.fullmatch(said["name"]):
            yield f"a file is called {_cited(said.get('name'))}"
        if not _is_number(said.get("bytes")) or not said["bytes"]:
            yield f"the file {_cited(said['name'])} has {_cited(said.get('bytes'))} bytes"
    if len({file["name"] for file in files}) < len(files):
        yield "two files have one name"


def _wrong_array(array: Any, files: Sequence[Mapping[str, Any]], left: list[int]) -> Iterator[str]:
    """Yield what is wrong with one array; `left` is what no array before it takes of each file, in bytes."""
    if not isinstance(array, dict) or not {"shape", "dtype", "chunk_shape", "chunks"} <= array.keys():
        yield f"there is only {_cited(array)}"
    shape, chunk_shape, chunks = array["shape"], array["chunk_shape"], array["chunks"]
    if not isinstance(array["dtype"], str) or array["dtype"] not in _zarr.DTYPES:
        yield f"dtype is {_cited(array['dtype'])}"
    if not _is_shape(shape):
        yield f"shape is {_cited(shape)}"
    if not _is_shape(chunk_shape) or not all(chunk_shape) or len(chunk_shape) != len(shape):
        yield f"chunk_shape is {_cited(chunk_shape)}, and shape {_cited(shape)}"
    if any(size % chunk for size, chunk in zip(shape, chunk_shape, strict=True)):
        yield f"chunk_shape is {chunk_shape}, which does not divide shape, {shape}"
    itemsize = np.dtype(array["dtype"]).itemsize
    if math.prod(max(1, size) for size in shape) * itemsize > _LARGEST:
        yield f"shape is {shape}, which no memory holds"
    count = math.prod(size // chunk for size, chunk in zip(shape, chunk_shape, strict=True))
    if not isinstance(chunks, list) or len(chunks) != count:
        yield f"chunks is {_cited(chunks)}, and should have {count} entries"
    yield from _wrong_chunks(chunks, math.prod(chunk_shape) * itemsize, files, left)


def _wrong_chunks(
    chunks: list[Any], nbytes: int, files: Sequence[Mapping[str, Any]], left: list[int]
) -> Iterator[str]:
    if set(map(type, chunks)) - {list} or set(map(len, chunks)) - {4}:
        yield f"chunks has an entry that is no file, offset, size and CRC-32: {_cited(chunks)}"
    if set(map(type, itertools.chain.from_iterable(chunks))) - {int}:
        yield f"chunks has an entry that is no number: {_cited(chunks)}"
    for number, (file, offset, size, crc) in enumerate(chunks):
        if not 0 <= file < len(files):
            yield f"chunk {number} is in file {file} of {len(files)}"
        if size != nbytes or not 0 <= offset <= files[file]["bytes"] - size or not 0 <= crc < 1 << 32:
            yield (
                f"chunk {number} has {size} bytes at offset {offset} and the CRC-32 {crc}; it should have "
                f"{nbytes} bytes within a file of {files[file]['bytes']}"
            )
        left[file] -= size
        if left[file] < 0:
            yield f"chunk {number} has more bytes than are left in its file: it would share them"


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _MOST_DIMS and all(map(_is_number, value))


def _is_name(name: str) -> bool:
    try:
        return len(name.encode()) < _LONGEST_NAME
    except UnicodeEncodeError:  # half of a pair, which JSON takes
        return False


def _too_deep(value: Any) -> str | None:
    try:
        check_depth(value)
    except ValueError as error:
        return str(error)
    return None


def _cited(value: Any) -> str:
    """Return a short text of a value, for people, however large it is."""
    if isinstance(value, list | dict):
        kind = "a list" if isinstance(value, list) else "an object"
        return f"{kind} of {len(value)}" if len(value) > 8 or _has_inner(value) else repr(value)
    return repr(value) if len(repr(value)) < 80 else f"{value!r:.80}…"


def _has_inner(value: list[Any] | dict[str, Any]) -> bool:
    inner = value.values() if isinstance(value, dict) else value
    return any(isinstance(each, list | dict) for each in inner)
