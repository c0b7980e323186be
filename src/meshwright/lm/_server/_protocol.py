"""HTTP/1.1 by uvicorn, closed to clients that send too slowly or too much at once, and that do not read."""

from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

_PIPELINED = 1 << 16


def protocol(seconds: float, answer_seconds: float, most: int) -> type[H11Protocol]:
    """Return uvicorn's protocol, with bounds for each connection.

    A connection is closed if the headers of a request do not come in time, if what was sent is not read in
    time, if more than 64 KiB of further requests come before an answer has gone out, or if there are too many
    connections and it is the one without a request for the longest time.
    """

    class Bounded(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.idle_since = self._unread_since = self.loop.time()
            self._has_begun, self._unread = True, 0  # the first request is due from now on
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
            """Look at the connection now and then, and close it if it is late."""
            if self not in self.connections:
                return  # it is closed
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
