"""Sockets as the processes of a run use them, one line of JSON each way to say hello.

Sockets go straight to the address, whatever proxies the environment names.
"""

import contextlib
import json
import socket
from collections.abc import Iterable
from typing import Any

LINE_SECONDS = 5
"""Seconds that a connected process may take to send one line."""
_CONNECT_SECONDS = 5
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""A host that lost its power is noticed after so many seconds, and as many times three."""


def connect(address: str) -> socket.socket:
    """Return a connection to `host:port`."""
    return socket.create_connection(split(address), timeout=_CONNECT_SECONDS)


def split(address: str) -> tuple[str, int]:
    """Return the host and the port of `host:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def tell_line(peers: Iterable[socket.socket], message: dict[str, Any]) -> None:
    """Say one line to each of `peers`. Who has left need not hear it."""
    for peer in peers:
        with contextlib.suppress(OSError):
            peer.settimeout(LINE_SECONDS)
            peer.sendall(json.dumps(message).encode() + b"\n")


def read_line(peer: socket.socket, timeout_seconds: float) -> Any:
    """Return the next line as JSON, or None where nothing sensible comes. Nothing after it is read."""
    peer.settimeout(timeout_seconds)
    try:
        with peer.makefile("rb", buffering=0) as lines:
            return json.loads(lines.readline(4096))
    except (OSError, ValueError):
        return None


def stay_connected(peer: socket.socket) -> None:
    """Have the system look from time to time whether the other side is still there."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):  # not all systems have them all
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def ranges(numbers: Iterable[int]) -> str:
    """Write {3, 4, 5, 9} as `3-5, 9`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)
