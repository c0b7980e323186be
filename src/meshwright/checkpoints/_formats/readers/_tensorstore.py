"""TensorStore, from `meshwright[tensorstore]`: it reads zarr arrays, versions 2 and 3, with any chunks and
codecs.

It reads the database of Orbax, OCDBT, too. It reaches object stores through an HTTP server of this process,
on the loopback interface and below a secret path, which reads from the store as all other code does. So
credentials and retries are the same everywhere.
"""

import functools
import math
import re
import secrets
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from meshwright.base._internal import Directory, ObjectPath, import_extra
from meshwright.checkpoints._arrays._chunks import Bounds, bounds_of, shares_of
from meshwright.checkpoints._arrays._lazy import Index, LazyArray
from meshwright.errors import CheckpointError, DamagedError, MeshwrightError, UsageError

_CACHED = 16 << 20
"""Bytes of decoded chunks in the cache, as several slices of a chunk may be read one after the other."""

_HOST = "127.0.0.1"


def tensorstore_for(user: str) -> Any:
    """Return the module `tensorstore`."""
    return import_extra("tensorstore", extra="tensorstore", needed_by=user)


@functools.cache
def shared_context() -> Any:
    """Return the context for all reading, with a cache of decoded chunks."""
    import tensorstore

    # The server below retries requests to the store.
    retries = {
        "max_retries": 2,
        "initial_delay": "50ms",
        "max_delay": "500ms",
    }
    return tensorstore.Context(
        {"cache_pool": {"total_bytes_limit": _CACHED}, "http_request_retries": retries}
    )


def store_of(directory: Directory, context: Any = None) -> Any:
    """Return the `tensorstore.KvStore` of a directory; one in a store is read-only."""
    tensorstore = tensorstore_for(str(directory))
    if isinstance(directory, ObjectPath):
        spec = {"driver": "http", "base_url": _served(directory)}
    else:
        for path in directory.rglob("*"):
            if path.is_fifo() or path.is_char_device():
                raise CheckpointError(f"{path} is not an ordinary file, and may have no end. Remove it.")
        spec = {"driver": "file", "path": f"{directory}/"}
    return tensorstore.KvStore.open(spec, context=context or shared_context()).result()


@contextmanager
def errors_naming_action(action: str) -> Iterator[None]:
    """Turn an error of TensorStore into one that names the action, `read …`."""
    try:
        yield
    except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, MeshwrightError):
            raise
        raise MeshwrightError(f"cannot {action}: {reason_of(error)}") from None


def reason_of(error: Exception) -> str:
    """Return an error's message without places in TensorStore's source; for a store, the store's message."""
    if (word := re.search(rf"{_HOST}:\d+/([\w-]+)/", str(error))) and word[1] in _FAILURES:
        return _FAILURES.pop(word[1])
    # The pattern does not split at "Byte range [0, 10)".
    return re.split(r" \[(?=[\w ]+=')", str(error), maxsplit=1)[0]


_SERVED: dict[str, ObjectPath] = {}
"""The directories that the server reads, by secret path."""
_FAILURES: dict[str, str] = {}
"""The last error of each, by secret path."""


def _served(directory: ObjectPath) -> str:
    if "http" in urllib.request.getproxies() and not urllib.request.proxy_bypass(_HOST):
        raise UsageError(
            f"{directory} is read by TensorStore over {_HOST}, but http_proxy applies to that address. "
            f"Add {_HOST} to no_proxy, or copy the checkpoint to a disk."
        )
    word = secrets.token_urlsafe(16)
    _SERVED[word] = directory
    return f"http://{_HOST}:{_server().server_port}/{word}/"


@functools.cache
def _server() -> ThreadingHTTPServer:
    server = ThreadingHTTPServer((_HOST, 0), _Reads)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="storage-reads", daemon=True).start()
    return server


class _Reads(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body go into one packet. Otherwise each answer would wait for an acknowledgement.
    wbufsize = 1 << 16

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing."""

    def do_GET(self) -> None:
        """Send the requested bytes of an object."""
        word, _, key = urlsplit(self.path).path.lstrip("/").partition("/")
        byte_range = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = (
            (int(byte_range[1]), int(byte_range[2]) + 1 if byte_range[2] else None)
            if byte_range
            else (0, None)
        )
        try:
            path = _SERVED[word] / unquote(key)
            answer = path.answer_with_size(path.request(first, last if byte_range else None))
        except KeyError:
            answer = None
        except MeshwrightError as error:
            _FAILURES[word] = str(error)
            self._send(503, b"")
            return
        if answer is None or (byte_range and first >= answer[1]):
            self._send(404 if answer is None else 416, b"")
        else:
            span = f"bytes {first}-{first + len(answer[0]) - 1}/{answer[1]}"
            self._send(206 if byte_range else 200, answer[0], {"Content-Range": span} if byte_range else {})

    def _send(self, status: int, content: bytes | memoryview, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


_IN_FLIGHT_NBYTES = 64 << 20
_OUTSIDE = re.compile(r"(?!NOT_FOUND|FAILED_PRECONDITION|DATA_LOSS|OUT_OF_RANGE)[A-Z_]+: ")
"""Matches the code of an error that is not about the stored bytes; a decoding error has no code."""


def open_arrays(
    directory: Directory, store: Any, specs: Mapping[str, Mapping[str, Any]]
) -> dict[str, LazyArray]:
    """Return the arrays that TensorStore opens by these specs, by name; no chunk is read."""
    tensorstore = tensorstore_for(str(directory))
    opening = {name: _open(tensorstore, store, **spec) for name, spec in specs.items()}
    return {name: _array(f"{name} in {directory}", requested) for name, requested in opening.items()}


def _open(tensorstore: Any, store: Any, path: str, **spec: Any) -> Any:
    options = {"fill_missing_data_reads": False, "recheck_cached_data": "open", "open": True, **spec}
    below = store + (f"{path}/" if path else "")
    return tensorstore.open(options, kvstore=below, context=shared_context(), read=True)


def _array(name: str, requested: Any) -> LazyArray:
    with errors_naming_array(name):
        opened = requested.result()
    chunks = opened.chunk_layout.read_chunk.shape
    reader = _Reader(name, opened, tuple(chunks or opened.shape))
    return LazyArray(tuple(opened.shape), opened.dtype.numpy_dtype, reader, stored_chunks=chunks)


@dataclass(frozen=True)
class _Reader:
    """The `read` of a `LazyArray` that TensorStore has opened."""

    name: str
    opened: Any
    chunks: tuple[int, ...]

    def __call__(self, index: Index) -> np.ndarray:
        """Return a part. Chunks are decoded as a whole, up to 64 MiB of them at a time."""
        bounds = bounds_of(index, self.opened.shape)
        shares = list(shares_of(bounds, self.chunks))
        chunk_nbytes = math.prod(self.chunks) * self.opened.dtype.numpy_dtype.itemsize
        at_a_time = max(1, _IN_FLIGHT_NBYTES // max(1, chunk_nbytes))
        if len(shares) <= at_a_time:
            return self.parts([index])[0]
        out = np.empty([last - first for first, last in bounds], self.opened.dtype.numpy_dtype)
        for first in range(0, len(shares), at_a_time):
            self._read_into(out, bounds, [into for _, into, _ in shares[first : first + at_a_time]])
        return out

    def _read_into(self, out: np.ndarray, bounds: Bounds, indices: Sequence[Index]) -> None:
        parts = self.parts([_within(bounds, index) for index in indices])
        for index, part in zip(indices, parts, strict=True):
            out[index] = part

    def parts(self, indices: Sequence[Index]) -> list[np.ndarray]:
        requested = [self._part(index).read() for index in indices]
        with errors_naming_array(self.name):
            return [request.result() for request in requested]

    def _part(self, index: Index) -> Any:
        return self.opened[
            tuple(slice(*part.indices(size)) for size, part in zip(self.opened.shape, index, strict=True))
        ]


def _within(bounds: Bounds, index: Index) -> Index:
    """Return the index into the whole array of an index into a part."""
    return tuple(
        slice(first + part.start, first + part.stop) for (first, _), part in zip(bounds, index, strict=True)
    )


@contextmanager
def errors_naming_array(name: str) -> Iterator[None]:
    """Turn an error of TensorStore into one that names the array."""
    try:
        yield
    except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
        message = f"cannot read {name}: {reason_of(error)}"
        if _OUTSIDE.match(str(error)):
            raise MeshwrightError(message) from None
        raise DamagedError(f"{message}. Copy it again, or use another checkpoint.") from None
