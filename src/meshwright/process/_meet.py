"""Connections for processes that JAX brought together by itself, so that no roll was called.

Process 0 listens, and says through the devices where: its addresses, and a word that only this run knows. On
some networks processes cannot connect; then they compare through the devices, too.
"""

import contextlib
import secrets
import socket
import sys
import time
from collections.abc import Sequence

import jax

from meshwright.process._agree import agree, gather
from meshwright.process._board import Board, DeviceBoard, LeadBoard, PeerBoard
from meshwright.process._peers import watch_peers
from meshwright.process._post import Post
from meshwright.process._sockets import LINE_SECONDS, connect, read_line, send_line

_ARRIVE_SECONDS = 15
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses of nobody, to which nothing is sent: the system tells from which of its own it would be."""


def meet() -> Board:
    """Return this process's connection to the others. Collective, and by the devices."""
    board = _lead() if jax.process_index() == 0 else _other()
    connected = gather(board is not None)
    if board is not None and all(connected):
        watch_peers(board.post).was_joined = True
        return board
    if jax.process_index() == 0:
        print(
            "meshwright: not all processes can connect to process 0, so they compare by collectives on their "
            "devices: of an error on one of them the others hear only that it is gone",
            file=sys.stderr,
            flush=True,
        )
    return DeviceBoard()


def _lead() -> LeadBoard | None:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    with socket.create_server(("", 0), family=family, backlog=4096, dualstack_ipv6=both) as listener:
        word = secrets.token_hex(16)
        agree({"addresses": _addresses(listener.getsockname()[1]), "word": word})
        return _admitted(listener, word)


def _admitted(listener: socket.socket, word: str) -> LeadBoard | None:
    peers: dict[int, socket.socket] = {}
    end = time.monotonic() + _ARRIVE_SECONDS
    while len(peers) < jax.process_count() - 1 and (left := end - time.monotonic()) > 0:
        listener.settimeout(left)
        with contextlib.suppress(TimeoutError):
            peer = listener.accept()[0]
            match read_line(peer, LINE_SECONDS):
                case {"process": int(number), "word": said} if said == word:
                    peers[number] = peer
                    send_line([peer], {"welcome": word})
                case _:
                    peer.close()
    return LeadBoard(Post(peers)) if len(peers) == jax.process_count() - 1 else None


def _other() -> PeerBoard | None:
    told = agree(None)
    number, word = jax.process_index(), told["word"]
    for address in told["addresses"]:
        with contextlib.suppress(OSError):
            lead = connect(address)
            send_line([lead], {"process": number, "word": word})
            if read_line(lead, LINE_SECONDS) == {"welcome": word}:
                return PeerBoard(number, Post({0: lead}))
            lead.close()
    return None


def _addresses(port: int) -> Sequence[str]:
    """Return where this machine may be reached, the likeliest first."""
    found: list[str] = []
    for family, nobody in _ELSEWHERE:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect((nobody, 9))
            found.append(asked.getsockname()[0])
    return [f"[{host}]:{port}" for host in [*found, socket.gethostname(), "127.0.0.1"]]
