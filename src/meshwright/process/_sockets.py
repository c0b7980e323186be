"""Helpers for the TCP sockets between the processes of a run: to connect, and to exchange lines of JSON.

Sockets connect directly to an address and use no proxy, whatever the environment says.
"""

import contextlib
import json
import socket
from collections.abc import Iterable
from typing import Any

LINE_SECONDS = 5
"""The seconds that a connected process may take to send one line."""
_CONNECT_SECONDS = 5
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


def send_line(peers: Iterable[socket.socket], message: dict[str, Any]) -> None:
    """Send a message as one line of JSON to each of `peers`. Errors of closed connections are ignored."""
    for peer in peers:
        with contextlib.suppress(OSError):
            peer.settimeout(LINE_SECONDS)
            peer.sendall(json.dumps(message).encode() + b"\n")


def read_line(peer: socket.socket, timeout_seconds: float) -> Any:
    """Return the next line, parsed as JSON, or None if no valid line comes in time. It reads nothing more."""
    peer.settimeout(timeout_seconds)
    try:
        with peer.makefile("rb", buffering=0) as lines:
            return json.loads(lines.readline(4096))
    except (OSError, ValueError):
        return None


def stay_connected(peer: socket.socket) -> None:
    """Turn on TCP keep-alive, so that the system notices when the host of a peer is gone."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):  # some systems lack some of them
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
