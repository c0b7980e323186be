"""TCP sockets between processes, and between launchers: their addresses, and messages as lines of JSON.

Sockets connect directly to an address and use no proxy, whatever the environment says.

`Connections` are those of process 0 to all others, or that of another process to process 0. One thread reads
all of them, so that no sender waits for long. Messages of the rounds in which processes compare
(`_exchange.py`) are put in a queue. All other messages say how a process fares, and go to `_peers.py`.
"""

import contextlib
import ipaddress
import json
import os
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping
from typing import Any

from meshwright.base._internal import parse_json

LINE_SECONDS = 5
"""The seconds that a connected process may take to send one line."""
_CONNECT_SECONDS = 5
_LOOK_SECONDS = 0.02
_LONGEST_LINE = 4096
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""The system asks an idle peer after 10 seconds, and then three times at intervals of 10 seconds. So a host
that lost its power is noticed after 40 seconds."""


def connect(address: str) -> socket.socket:
    """Return a connection to `host:port`."""
    return socket.create_connection(split_address(address), timeout=_CONNECT_SECONDS)


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of `host:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def address_towards(destination: tuple[Any, ...], family: int) -> str:
    """Return the address of this machine from which packets go to a destination, a host and a port."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(destination)  # sends nothing
        return probe.getsockname()[0]


def line_of(message: Any) -> bytes:
    """Return a message as a line of JSON."""
    return json.dumps(message).encode() + b"\n"


def send_at_once(peer: socket.socket, line: bytes) -> None:
    """Send a line without waiting for the other side to read. Errors of closed connections are ignored.

    If there is no room for the line, the connection ends: half a line would be misread.
    """
    with contextlib.suppress(OSError):
        # Not `send`, which waits by the socket's time limit; the descriptor itself never blocks.
        if os.write(peer.fileno(), line) < len(line):
            peer.shutdown(socket.SHUT_RDWR)


def send_line(peers: Iterable[socket.socket], message: dict[str, Any]) -> None:
    """Send a message as one line of JSON to each of `peers`. Errors of closed connections are ignored."""
    for peer in peers:
        with contextlib.suppress(OSError):
            peer.settimeout(LINE_SECONDS)
            peer.sendall(line_of(message))


def read_line(peer: socket.socket, timeout_seconds: float) -> Any:
    """Return the next line, parsed as JSON, or None if no valid line comes in time. It reads nothing more."""
    end, line = time.monotonic() + timeout_seconds, b""
    try:
        while not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
            peer.settimeout(end - time.monotonic())  # a negative one is a ValueError
            if not (received := peer.recv(1)):
                break
            line += received
        return parse_json(line)
    except (OSError, ValueError):
        return None


def first_lines(listener: socket.socket) -> Iterator[tuple[socket.socket, Any] | None]:
    """Accept connections, and yield each with its first line, parsed; None now and then.

    Each is read on a thread, so that one which sends nothing, or slowly, does not hold up others.
    """
    lines: queue.SimpleQueue[tuple[socket.socket, Any]] = queue.SimpleQueue()

    def read(peer: socket.socket) -> None:
        if (line := read_line(peer, LINE_SECONDS)) is None or listener.fileno() < 0:
            # A port scanner or a health check, or it comes too late.
            peer.close()
        else:
            lines.put((peer, line))

    listener.settimeout(_LOOK_SECONDS)
    try:
        while True:
            with contextlib.suppress(TimeoutError, ConnectionError):
                threading.Thread(target=read, args=(listener.accept()[0],), daemon=True).start()
            while not lines.empty():
                yield lines.get()
            yield None
    finally:
        while not lines.empty():
            lines.get()[0].close()


def own_host(address: str) -> str:
    """Return the host at which to listen for connections to `host:port`; "" for all interfaces.

    A name may be that of another address of this machine on other ones.
    """
    host = split_address(address)[0].replace("localhost", "127.0.0.1")
    with contextlib.suppress(OSError, ValueError):
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family) as probe:
            # Binding fails for an address of another machine, as of a router before this one.
            probe.bind((host, 0))
            return host
    return ""


def stay_connected(peer: socket.socket) -> None:
    """Turn on TCP keep-alive, so that the system notices when the host of a peer is gone."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):  # some systems lack some of them
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


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
        """Send a short message to all connected processes. It ignores errors, and never waits for long."""
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
