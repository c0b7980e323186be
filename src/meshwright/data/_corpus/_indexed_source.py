"""Documents of an object that can be indexed, which are sent to the process that tokenizes.

Its standard input gets a line of JSON for each: first `{"start": 7}`, the number of the first document that
follows, then `[document, tools]`, null where there is none, and an empty line at the end. The object itself
cannot be sent: it may hold functions, open files, or all texts.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from meshwright.base._internal import parse_object
from meshwright.data._corpus._files import IN_OBJECT, File
from meshwright.data._corpus._readers import Record, record_of, without_nulls
from meshwright.errors import ExamplesError

# The number of documents in the digest of an object, which tells it from others.
_NUM_DIGESTED = 10_000
_MOST = 1 << 48


class Documents(Protocol):
    """An object that can be indexed by whole numbers: a `datasets.Dataset`, a `MapDataset` of grain."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class IndexedSource:
    """Documents that are given as an object."""

    def __init__(self, source: Documents, field: str):
        self._source, self._field, self._size = source, field, len(source)
        self._name = f"{type(source).__module__.partition('.')[0]}.{type(source).__name__}"
        if self._size > _MOST:
            raise ExamplesError(
                f"{self._name} has {self._size} items: it repeats without end. Give it before `repeat`."
            )

    def file(self) -> File:
        """Return what stands for the object among files. Its version is a digest of up to 10,000
        documents.
        """
        some = np.unique(
            np.linspace(0, max(self._size - 1, 0), min(self._size, _NUM_DIGESTED)).astype(np.int64)
        )
        digest = hashlib.sha256()
        for number in some.tolist():
            digest.update(self._line(number))
        return File(self._name, self._size, digest.hexdigest(), IN_OBJECT)

    def send(self, stream: IO[bytes], start: int) -> None:
        """Write the documents from number `start` on."""
        stream.write(json.dumps({"start": start}).encode() + b"\n")
        for number in range(start, self._size):
            stream.write(self._line(number))
        stream.write(b"\n")
        stream.flush()

    def _line(self, number: int) -> bytes:
        where = f"{self._name}, document {number + 1}"
        try:
            item = self._source[number]
        except Exception as error:
            # The object may be of any library, and raise errors of any class.
            message = f"{type(error).__name__}: {error}"
            raise ExamplesError(f"{where}: it cannot be read: {message}") from error
        record = record_of(number, item, self._field, where) if isinstance(item, Mapping) else None
        content = [item, None] if record is None else [record.value, without_nulls(record.tools)]
        try:
            return json.dumps(content, default=_plain).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise ExamplesError(f"{where}: it is neither a text, nor tokens, nor a chat: {error}.") from None


def _plain(value: Any) -> Any:
    """Return a value of JSON for a value of NumPy or of bytes."""
    # TFRecord and ArrayRecord have texts as bytes.
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"found a value of type {type(value).__name__}")


def is_indexed_source(paths: Any) -> bool:
    """Return whether these are documents in an object, and not paths."""
    is_paths = isinstance(paths, str | Path | list | tuple | set | frozenset | Mapping)
    return not is_paths and hasattr(paths, "__len__") and hasattr(paths, "__getitem__")


def received(start: int) -> Iterator[Record]:
    """Yield the documents from number `start` on that the parent of this process sends.

    The process ends where the parent ends before its last document.
    """
    # Not sys.stdin: its buffer would keep lines that a later reader waits for.
    with os.fdopen(0, "rb", closefd=False) as lines:
        number = parse_object(_whole(lines.readline()))["start"]
        while line := _whole(lines.readline()).strip():
            value, tools = json.loads(line)
            if number >= start and value is not None and value != "":
                yield Record(number, value, tools)
            number += 1


def _whole(line: bytes) -> bytes:
    if not line.endswith(b"\n"):
        # The parent has ended before its last document.
        os._exit(0)
    return line
