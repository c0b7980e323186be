"""Open connections between processes: those of process 0 to all others, or that of another to process 0.

A message is one line of JSON. One thread reads all connections as long as there are any, so that no sender
waits for long. Messages of the rounds in which processes compare (`_exchange.py`) are put in a queue. All
other messages say how a process fares, and go to the one who watches (`_peers.py`).
"""

import contextlib
import json
import queue
import selectors
import socket
import threading
from collections.abc import Callable, KeysView, Mapping
from typing import Any

from meshwright.processes._sockets import line_of, send_at_once, stay_connected

_SEND_SECONDS = 120
"""The seconds that the other side may take to read a message."""
_BUSY_SECONDS = 1
"""The seconds that a short message waits for another one that is being sent."""
_UNATTENDED_SECONDS = 1
"""The seconds between two calls of `poll` if nothing is attached yet."""

OnMessage = Callable[[int, Any], None]
"""A function of the number of a process and its message, which is None when the process has ended."""


class Connections:
    """Open connections to other processes. From now on it owns the sockets."""

    def __init__(self, sockets: Mapping[int, socket.socket]):
        self._sockets = dict(sockets)
        for peer in self._sockets.values():
            stay_connected(peer)
            peer.settimeout(_SEND_SECONDS)
        self._sending = {number: threading.Lock() for number in sockets}
        self.rounds: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        """The messages of rounds with their processes; the message None means that a connection has ended."""
        self._early: list[tuple[int, Any]] = []
        self._attaching = threading.Lock()
        self._on_message: OnMessage | None = None
        self._poll: Callable[[], float | None] = lambda: _UNATTENDED_SECONDS
        self._is_closed = False
        threading.Thread(target=self._read, name="meshwright-peers", daemon=True).start()

    @property
    def others(self) -> KeysView[int]:
        """The numbers of the other processes."""
        return self._sockets.keys()

    def attach(self, on_message: OnMessage, poll: Callable[[], float | None]) -> None:
        """Call functions on the reading thread for messages outside of rounds, including earlier ones."""
        with self._attaching:
            self._on_message, self._poll = on_message, poll
            for number, message in self._early:
                on_message(number, message)

    def send(self, number: int, message: Any) -> None:
        """Send a message of any length to a process."""
        with self._sending[number]:
            self._sockets[number].sendall(line_of(message))

    def broadcast(self, message: Any, *, but: int | None = None) -> None:
        """Send a short message to all connected processes. Errors are ignored, and it never waits for
        long.
        """
        line = line_of(message)
        for number in self.others - {but}:
            if self._sending[number].acquire(timeout=_BUSY_SECONDS):
                send_at_once(self._sockets[number], line)
                self._sending[number].release()

    def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        for peer in self._sockets.values():
            with contextlib.suppress(OSError):  # the other side has closed it
                peer.shutdown(socket.SHUT_RDWR)

    def close_in_fork(self) -> None:
        """Close the sockets in a forked process; they stay open in the parent."""
        for peer in self._sockets.values():
            peer.close()

    def _read(self) -> None:
        rest = dict.fromkeys(self.others, b"")
        with selectors.DefaultSelector() as selector:
            for number, peer in self._sockets.items():
                selector.register(peer, selectors.EVENT_READ, number)
            while True:
                seconds = self._poll()
                if not selector.get_map() and (seconds is None or self._is_closed):
                    break
                for key, _ in selector.select(seconds):
                    if not self._read_from(key.data, rest):
                        selector.unregister(key.fileobj)
        self.close_in_fork()

    def _read_from(self, number: int, rest: dict[int, bytes]) -> bool:
        """Read what a process has sent, and return whether its connection is still open."""
        data = _received(self._sockets[number])
        *lines, rest[number] = (rest[number] + (data or b"")).split(b"\n")
        for line in lines:
            self._deliver(number, json.loads(line))
        if not data:
            self.rounds.put((number, None))
        if data == b"":
            self._hand_over(number, None)
        return bool(data)

    def _deliver(self, number: int, message: Any) -> None:
        if "round" in message:
            self.rounds.put((number, message))
        else:
            self._hand_over(number, message)

    def _hand_over(self, number: int, message: Any) -> None:
        with self._attaching:
            if self._on_message is None:
                self._early.append((number, message))
            else:
                self._on_message(number, message)


def _received(peer: socket.socket) -> bytes | None:
    """Return the data that came: b"" if the process has ended, None if the network has failed."""
    try:
        return peer.recv(1 << 18)
    except ConnectionResetError:
        return b""
    except OSError:
        return None
