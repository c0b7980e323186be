"""Sockets as the processes of a run use them: a JSON line to say hello, and longer messages afterwards.

    hello      {"process": 3, "of": 8} and a new line
    message    8 bytes, the length; so many bytes of JSON

Sockets go straight to the address, whatever proxies the environment names.
"""

import contextlib
import json
import socket
import struct
from collections.abc import Iterable
from typing import Any

LINE_SECONDS = 5
"""How long somebody who is connected may take to say one line."""
_CONNECT_SECONDS = 5
_MESSAGE_SECONDS = 120
"""How long a message may take that has begun."""
_LENGTH = struct.Struct("!Q")
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


def send(peer: socket.socket, message: Any) -> None:
    """Send a message of any length.

    Raises:
      OSError: the other side has left.
    """
    body = json.dumps(message).encode()
    peer.settimeout(_MESSAGE_SECONDS)
    peer.sendall(_LENGTH.pack(len(body)) + body)


def receive(peer: socket.socket) -> Any:
    """Return the next message, which has begun to come.

    Raises:
      OSError: the other side has left.
      ValueError: what came is no message.
    """
    peer.settimeout(_MESSAGE_SECONDS)
    (length,) = _LENGTH.unpack(_exactly(peer, _LENGTH.size))
    return json.loads(_exactly(peer, length))


def _exactly(peer: socket.socket, num_bytes: int) -> bytes:
    pieces = []
    while num_bytes:
        piece = peer.recv(min(num_bytes, 1 << 20))
        if not piece:
            raise ConnectionResetError("the other side has left")
        pieces.append(piece)
        num_bytes -= len(piece)
    return b"".join(pieces)


def ranges(numbers: Iterable[int]) -> str:
    """Write {3, 4, 5, 9} as `3-5, 9`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)
