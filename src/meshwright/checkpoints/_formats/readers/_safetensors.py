"""Reads safetensors, in one file or in several with an index. `_export_safetensors.py` has the layout.

Names stay as they are in the files, with dots. A leaf is found by its Meshwright name with `.` instead of
`/`.
"""

import math
import operator
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from meshwright.base._internal import Directory, parse_object
from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._arrays._source import Spelling
from meshwright.checkpoints._formats._export_safetensors import DTYPES, LENGTH, METADATA
from meshwright.checkpoints._formats.readers._file import (
    File,
    check_listed,
    head,
    only_index,
    raw_array,
    read_index,
)
from meshwright.checkpoints._formats.readers._reader import Foreign, Reader
from meshwright.errors import CheckpointError, DamagedError, listed

_INDEX = "*.safetensors.index.json"
_SINGLE = "model.safetensors"
_SHARD = re.compile(r"(.+)-\d+-of-(\d+)\.safetensors")
_MAX_HEADER = 100_000_000  # bytes; the format's own limit
_DTYPES = {theirs: ours for ours, theirs in DTYPES.items()}


def _recognises(path: Directory) -> bool:
    if any(path.glob(_INDEX)) or any(path.glob("*.safetensors")):
        return True
    # An empty file is recognised by its name, and reported as damaged.
    if path.name.endswith(".safetensors") and path.is_file():
        return True
    start = head(path, LENGTH.size + 1)
    return start[LENGTH.size :] == b"{" and LENGTH.unpack_from(start)[0] <= _MAX_HEADER


def _open(path: Directory) -> Foreign:
    if index := only_index(path, _INDEX, _SINGLE):
        return _open_sharded(path, index)
    single = path / _SINGLE
    shards = [file for file in path.glob("*.safetensors") if _SHARD.fullmatch(file.name)]
    if single.is_file() and shards:
        raise CheckpointError(
            f"{path} has {_SINGLE} and {min(shard.name for shard in shards)}, a part of another checkpoint. "
            "Move one away, with its files, or open a file."
        )
    files = [single] if single.is_file() else _without_index(path) or [path]
    arrays: dict[str, LazyArray] = {}
    metadata: dict[str, str] = {}
    for file in files:
        more_arrays, texts = _open_file(file)
        if doubles := arrays.keys() & more_arrays.keys():
            raise CheckpointError(
                f"{path} has {min(doubles)} in several files, and no index that names one of them. Open a "
                f"single file, such as {file.name}, or move the others away."
            )
        arrays, metadata = arrays | more_arrays, metadata | dict(texts)
    return _opened(path, arrays, metadata)


def _without_index(directory: Directory) -> list[Directory]:
    """Return the files of a directory that has no index."""
    files = sorted(directory.glob("*.safetensors"), key=str)
    counts = Counter(shard.groups() for file in files if (shard := _SHARD.fullmatch(file.name)))
    for (name, total), count in counts.items():
        if count < int(total):
            raise DamagedError(
                f"{directory} has only {count} of {int(total)} files {name}-…-of-{total}. Copy the others, "
                "too."
            )
    return files


def _open_sharded(directory: Directory, index: Directory) -> Foreign:
    files, index_metadata = read_index(index)
    shards = {name: _open_file(directory / name) for name in sorted(set(files.values()))}
    check_listed(index, files, {file: names for file, (names, _) in shards.items()})
    metadata = {key: text for _, file_metadata in shards.values() for key, text in file_metadata.items()}
    arrays = {name: shards[file][0][name] for name, file in files.items()}
    return _opened(directory, arrays, metadata | index_metadata)


def _opened(path: Directory, arrays: Mapping[str, LazyArray], metadata: Mapping[str, Any]) -> Foreign:
    return Foreign(
        path,
        READER.name,
        arrays,
        extra=dict(metadata),
        spelling=Spelling(lambda name: name.replace("/", "."), lambda name: name.replace(".", "/")),
    )


class _Entry(NamedTuple):
    """The header's entry of an array: dtype, shape, and the offsets of its first byte and after its last."""

    dtype: str
    shape: tuple[int, ...]
    first: int
    last: int


def _open_file(path: Directory) -> tuple[dict[str, LazyArray], Mapping[str, str]]:
    """Return the arrays of one file, and its metadata."""
    entries, metadata, start = _header(path)
    if unknown := [
        f"{name} ({entry.dtype})" for name, entry in entries.items() if entry.dtype not in _DTYPES
    ]:
        raise CheckpointError(f"{path} has arrays of unknown dtypes: {listed(unknown)}.")
    file = File(path, start + _end(path, entries))
    return {
        name: raw_array(file, start + entry.first, entry.shape, np.dtype(_DTYPES[entry.dtype]))
        for name, entry in entries.items()
    }, metadata


def _end(path: Directory, entries: Mapping[str, _Entry]) -> int:
    """Return the offset after the last array; arrays must follow each other without gaps."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].first, item[1].last)):
        nbytes = math.prod(entry.shape) * np.dtype(_DTYPES[entry.dtype]).itemsize
        if (entry.first, entry.last) != (end, end + nbytes) or min(entry.shape, default=0) < 0:
            raise DamagedError(
                f"{path} is damaged: {name}, {entry.dtype}{list(entry.shape)}, has its bytes from "
                f"{entry.first} to {entry.last}, but should have them from {end} to {end + nbytes}. Copy it "
                "again."
            )
        end = entry.last
    return end


def _header(path: Directory) -> tuple[dict[str, _Entry], Mapping[str, str], int]:
    """Return the header's entries of the arrays, its metadata, and the offset at which the data begins."""
    length = head(path, LENGTH.size)
    if len(length) < LENGTH.size:
        raise DamagedError(f"{path} is missing, or ends before its header. Copy it again.")
    start = LENGTH.size + LENGTH.unpack(length)[0]
    text = head(path, min(start, _MAX_HEADER))[LENGTH.size :]
    if LENGTH.size + len(text) < start:
        raise DamagedError(f"{path} ends within its header, which should have {start} bytes. Copy it again.")
    try:
        header = parse_object(text)
        metadata = dict(header.pop(METADATA, None) or {})
        return {name: _entry(**fields) for name, fields in header.items()}, metadata, start
    except (ValueError, AttributeError, TypeError) as error:
        raise DamagedError(f"{path} has a damaged header: {error}. Copy it again.") from None


def _entry(dtype: str, shape: list[int], data_offsets: list[int]) -> _Entry:
    first, last = data_offsets
    return _Entry(dtype, tuple(map(operator.index, shape)), operator.index(first), operator.index(last))


READER = Reader("safetensors", _recognises, _open)
