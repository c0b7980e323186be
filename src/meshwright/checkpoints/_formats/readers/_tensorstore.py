"""TensorStore, from `meshwright[tensorstore]`: it reads Orbax's OCDBT, and codecs that only it has.

It reaches object stores through an HTTP server of this process, on the loopback interface and below a secret
path, which reads from the store as all other code does. So credentials and retries are the same everywhere.
"""

import functools
import re
import secrets
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from meshwright.base._internal import Directory, ObjectPath, import_extra
from meshwright.errors import CheckpointError, MeshwrightError, UsageError

_CACHED = 16 << 20
"""Bytes of decoded chunks in the cache, as several slices of a chunk may be read one after the other."""

_HOST = "127.0.0.1"


def tensorstore_for(what: str) -> Any:
    """Return the module `tensorstore`."""
    return import_extra("tensorstore", extra="tensorstore", what=what)


@functools.cache
def shared_context() -> Any:
    """Return the context for all reading, with a cache of decoded chunks."""
    import tensorstore

    retries = {
        "max_retries": 2,
        "initial_delay": "50ms",
        "max_delay": "500ms",
    }  # the server below retries requests to the store
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
def telling(what: str) -> Iterator[None]:
    """Turn an error of TensorStore into one that says what was tried."""
    try:
        yield
    except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, MeshwrightError):
            raise
        raise MeshwrightError(f"cannot {what}: {reason_of(error)}") from None


def reason_of(error: Exception) -> str:
    """Return an error's message without places in TensorStore's source; for a store, the store's message."""
    if (word := re.search(rf"{_HOST}:\d+/([\w-]+)/", str(error))) and word[1] in _FAILURES:
        return _FAILURES.pop(word[1])
    return re.split(r" \[(?=[\w ]+=')", str(error), maxsplit=1)[0]  # and not at "Byte range [0, 10)"


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
    wbufsize = 1 << 16  # head and body in one packet; otherwise each answer waits for an acknowledgement

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing."""

    def do_GET(self) -> None:
        """Send the requested bytes of an object."""
        word, _, key = urlsplit(self.path).path.lstrip("/").partition("/")
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = (int(wanted[1]), int(wanted[2]) + 1 if wanted[2] else None) if wanted else (0, None)
        try:
            path = _SERVED[word] / unquote(key)
            found = path.answer_with_size(path.request(first, last if wanted else None))
        except KeyError:
            found = None
        except MeshwrightError as error:
            _FAILURES[word] = str(error)
            self._send(503, b"")
            return
        if found is None or (wanted and first >= found[1]):
            self._send(404 if found is None else 416, b"")
        else:
            span = f"bytes {first}-{first + len(found[0]) - 1}/{found[1]}"
            self._send(206 if wanted else 200, found[0], {"Content-Range": span} if wanted else {})

    def _send(self, status: int, content: bytes | memoryview, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
