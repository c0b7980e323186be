"""Bounds on requests and connections: the size of a body, its time, its origin, and idle connections."""

import asyncio
import contextlib
import ipaddress
import json
import sys
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from meshwright.base._internal import print_line
from meshwright.lm._server._answers import error

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
# The time in which the body of a refused request may come.
_UNWANTED_SECONDS = 1.0


_PIPELINED = 1 << 16


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def guarded(app: App, *, max_bytes: int, seconds: float, names: set[str] | None) -> App:
    """Return an application that refuses large and slow bodies, and requests that pages of others send.

    A page on another site may send requests to this machine. It cannot send JSON as such without asking
    first, which is not answered, nor under another name of this machine if `names` are given. If the
    application fails, the log says where, without the message of the error, which may quote a prompt.
    """

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if problem := _problem(scope["method"], headers, max_bytes, names):
            # Bytes that are unread when a connection closes make the system reset it, and the answer is lost.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, _UNWANTED_SECONDS)):
                    await _body(receive, max_bytes)
            await _refuse(send, *problem)
            return
        try:
            async with asyncio.timeout(seconds):
                body = await _body(receive, max_bytes)
        except TimeoutError:
            await _refuse(send, 408, f"the request did not arrive within {seconds:g} s.")
            return
        if body is None:
            # The client has gone.
            return
        if len(body) > max_bytes:
            await _refuse(send, 413, f"the request has more than {max_bytes} bytes.")
            return
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> MutableMapping[str, Any]:
            return messages.pop() if messages else await receive()

        try:
            await app(scope, replayed, send)
        except Exception as problem:
            # The application has answered with the status 500 already.
            log_failure("a request failed:", problem)

    return call


def log_failure(heading: str, problem: Exception) -> None:
    """Print where an error was raised, and its type. Its message may quote a prompt."""
    lines = traceback.format_tb(problem.__traceback__, limit=-3)
    print_line("\n".join([heading, *map(str.rstrip, lines), type(problem).__name__]), sys.stderr)


def _problem(
    method: str, headers: dict[str, str], max_bytes: int, names: set[str] | None
) -> tuple[int, str] | None:
    """Return the status and the message for a request that is refused by its headers."""
    host = headers.get("host", "")
    host = host if host.endswith("]") else host.rpartition(":")[0] or host
    if names is not None and host.strip("[]").lower() not in names:
        return 421, "this server answers under the names of this machine only: use 127.0.0.1 or localhost."
    if method != "POST":
        return None
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return 415, "expected a body of JSON: send the header Content-Type: application/json."
    length = headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 18 or int(length) > max_bytes:
        return 413, f"the request has more than {max_bytes} bytes."
    return None


async def _body(receive: Receive, max_bytes: int) -> bytes | None:
    """Return the body, or its beginning if it is too large; None if the client goes."""
    body = bytearray()
    while len(body) <= max_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return bytes(body)


async def _refuse(send: Send, status: int, message: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    body = json.dumps(error(message, status)).encode()
    await send({"type": "http.response.body", "body": body})


def protocol(seconds: float, answer_seconds: float, most: int) -> type[H11Protocol]:
    """Return uvicorn's protocol, with bounds for each connection.

    A connection is closed if the headers of a request do not come in time, if the answer is not read in time,
    if more than 64 KiB of further requests come before an answer has gone out, or if there are too many
    connections and it is the one without a request for the longest time.
    """

    class Bounded(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.idle_since = self._unread_since = self.loop.time()
            # The first request is due from now on.
            self._has_begun, self._unread = True, 0
            _make_room(self, most)
            self._check()

        @property
        def is_idle(self) -> bool:
            """Return whether no request is being answered."""
            return self.cycle is None or self.cycle.response_complete

        def data_received(self, data: bytes) -> None:
            if self.is_idle and not self._has_begun:
                self._has_begun, self.idle_since = True, self.loop.time()
            super().data_received(data)
            self._has_begun = self._has_begun and self.is_idle
            if not self.is_idle and len(self.conn.trailing_data[0]) > _PIPELINED:
                self.transport.abort()

        def on_response_complete(self) -> None:
            self.idle_since = self.loop.time()
            super().on_response_complete()

        def _check(self) -> None:
            """Check the connection a few times in each bound of time, and close it if it is late."""
            if self not in self.connections:
                # The connection is closed.
                return
            time, unread = self.loop.time(), self.transport.get_write_buffer_size()
            self._unread_since = time if not unread or unread < self._unread else self._unread_since
            self._unread = unread
            is_late = self.is_idle and self._has_begun and time - self.idle_since > seconds
            if is_late or time - self._unread_since > answer_seconds:
                self.transport.abort()
            else:
                self.loop.call_later(min(seconds, answer_seconds, 4) / 4, self._check)

    return Bounded


def _make_room(new: Any, most: int) -> None:
    """Close the connection that has had no request for the longest time, if there are too many."""
    connections = [connection for connection in new.connections if not connection.transport.is_closing()]
    idle = [connection for connection in connections if connection.is_idle and connection is not new]
    if len(connections) > most and idle:
        min(idle, key=lambda connection: connection.idle_since).transport.abort()
