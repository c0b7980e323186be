"""Messages between this process and those that it is connected to: process 0 and each of the others.

A message is a line of JSON. One thread reads all connections as long as there are any, so that nobody who
sends waits for long. Messages of the rounds in which processes compare (`_board.py`) are put in a queue; all
others tell how a process fares, and are for who watches (`_peers.py`).
"""

import contextlib
import json
import queue
import selectors
import socket
import threading
from collections.abc import Callable, KeysView, Mapping
from typing import Any

from meshwright.process._sockets import stay_connected

_SEND_SECONDS = 120
"""Seconds that the other end may take to read a message."""
_BUSY_SECONDS = 1
"""Seconds that a short message waits for another that is being sent."""
_UNATTENDED_SECONDS = 1
"""Seconds between looks if another process watches now."""

Take = Callable[[int, Any], None]
"""Is given the number of a process and its message, or None when that process has ended."""


class Post:
    """Open connections to other processes by their numbers, which belong to this from now on."""

    def __init__(self, connections: Mapping[int, socket.socket]):
        self._connections = dict(connections)
        for peer in self._connections.values():
            stay_connected(peer)
            peer.settimeout(_SEND_SECONDS)
        self._sending = {number: threading.Lock() for number in connections}
        self.rounds: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        """Who said what in a round; None is of a connection that has ended."""
        self._early: list[tuple[int, Any]] = []
        self._attaching = threading.Lock()
        self._take: Take | None = None
        self._look: Callable[[], float | None] = lambda: _UNATTENDED_SECONDS
        self._is_closed = False
        threading.Thread(target=self._read, name="meshwright-peers", daemon=True).start()

    @property
    def others(self) -> KeysView[int]:
        """The numbers of the other processes."""
        return self._connections.keys()

    def attach(self, take: Take, look: Callable[[], float | None]) -> None:
        """Hand over, on the reading thread, what is no part of a round, and what of that came before.

        Args:
          take: Is given each message.
          look: Is called after each, and returns in how many seconds it wants to be called again, or None.
        """
        with self._attaching:
            self._take, self._look = take, look
            for number, message in self._early:
                take(number, message)

    def send(self, number: int, message: Any) -> None:
        """Send a message of any length.

        Raises:
          OSError: The process has left.
        """
        with self._sending[number]:
            self._connections[number].sendall(_line(message))

    def say(self, message: Any, *, but: int | None = None) -> None:
        """Send a short message to all that are connected; who has left need not hear it. Never waits."""
        for number in self.others - {but}:
            if self._sending[number].acquire(timeout=_BUSY_SECONDS):
                with contextlib.suppress(OSError):
                    self._connections[number].send(_line(message), socket.MSG_DONTWAIT)
                self._sending[number].release()

    def close(self) -> None:
        """End all connections."""
        self._is_closed = True
        for peer in self._connections.values():
            with contextlib.suppress(OSError):  # the other side was first
                peer.shutdown(socket.SHUT_RDWR)

    def close_in_fork(self) -> None:
        """Let go of the connections, in a process that was forked: its parent still has them."""
        for peer in self._connections.values():
            peer.close()

    def _read(self) -> None:
        rest = dict.fromkeys(self.others, b"")
        with selectors.DefaultSelector() as selector:
            for number, peer in self._connections.items():
                selector.register(peer, selectors.EVENT_READ, number)
            while True:
                seconds = self._look()
                if not selector.get_map() and (seconds is None or self._is_closed):
                    break
                for key, _ in selector.select(seconds):
                    if not self._read_from(key.data, rest):
                        selector.unregister(key.fileobj)
        self.close_in_fork()

    def _read_from(self, number: int, rest: dict[int, bytes]) -> bool:
        """Take what a process has sent; return whether more may come."""
        data = _received(self._connections[number])
        *lines, rest[number] = (rest[number] + (data or b"")).split(b"\n")
        for line in lines:
            self._sort(number, json.loads(line))
        if not data:
            self.rounds.put((number, None))
        if data == b"":
            self._hand_over(number, None)
        return bool(data)

    def _sort(self, number: int, message: Any) -> None:
        if "round" in message:
            self.rounds.put((number, message))
        else:
            self._hand_over(number, message)

    def _hand_over(self, number: int, message: Any) -> None:
        with self._attaching:
            if self._take is None:
                self._early.append((number, message))
            else:
                self._take(number, message)


def _received(peer: socket.socket) -> bytes | None:
    """Return what has come: nothing of a process that has ended, None where the network has failed."""
    try:
        return peer.recv(1 << 18)
    except ConnectionResetError:
        return b""
    except OSError:
        return None


def _line(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"
