"""TCP sockets between processes, and between launchers: their addresses, and messages as lines of JSON.

Sockets connect directly to an address and use no proxy, whatever the environment says.
"""

import contextlib
import ipaddress
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Iterable, Iterator
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
            peer.close()  # a port scanner or a health check, or it comes too late
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
            probe.bind((host, 0))  # fails for an address of another machine, as of a router before this one
            return host
    return ""


def stay_connected(peer: socket.socket) -> None:
    """Turn on TCP keep-alive, so that the system notices when the host of a peer is gone."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):  # some systems lack some of them
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
