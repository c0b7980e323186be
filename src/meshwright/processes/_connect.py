"""Connects processes that JAX has joined by itself, so that there was no rendezvous.

Process 0 listens, and sends its addresses and a secret token to the others by a collective on the devices. On
some networks processes cannot connect; then they compare by collectives, too.
"""

import contextlib
import secrets
import socket
import sys
import time
from collections.abc import Sequence

import jax

from meshwright.base._internal import print_line
from meshwright.processes._agree import agree, gather
from meshwright.processes._connections import Connections
from meshwright.processes._exchange import DeviceExchange, Exchange, LeadExchange, PeerExchange
from meshwright.processes._peers import watch_peers
from meshwright.processes._sockets import (
    LINE_SECONDS,
    address_towards,
    connect,
    first_lines,
    read_line,
    send_line,
)

_ARRIVE_SECONDS = 15
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses that belong to nobody (RFC 5737, RFC 3849). Nothing is sent there: for such a destination the
system says which address of this machine it would use."""


def connect_processes() -> Exchange:
    """Return the connection of this process to the others. Collective, and uses the devices."""
    exchange = _as_lead() if jax.process_index() == 0 else _as_other()
    connected = gather(exchange is not None)
    if exchange is not None and all(connected):
        watch_peers(exchange.connections).was_joined = True
        return exchange
    if jax.process_index() == 0:
        print_line(
            "meshwright: not all processes can connect to process 0, so they compare by collectives on their "
            "devices. If one fails, the others learn only that it is gone, not why",
            sys.stderr,
        )
    return DeviceExchange()


def _as_lead() -> LeadExchange | None:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    with socket.create_server(("", 0), family=family, backlog=4096, dualstack_ipv6=both) as listener:
        token = secrets.token_hex(16)
        agree({"addresses": _addresses(listener.getsockname()[1]), "token": token})
        return _accept_all(listener, token)


def _accept_all(listener: socket.socket, token: str) -> LeadExchange | None:
    """Return the exchange, or None if some processes do not connect in time."""
    peers: dict[int, socket.socket] = {}
    end = time.monotonic() + _ARRIVE_SECONDS
    arrivals = first_lines(listener)
    while len(peers) < jax.process_count() - 1 and time.monotonic() < end:
        match next(arrivals):
            case peer, {"process": int(number), "token": sent} if sent == token:
                peers[number] = peer
                send_line([peer], {"accepted": token})
            case peer, _:
                peer.close()
    return LeadExchange(Connections(peers)) if len(peers) == jax.process_count() - 1 else None


def _as_other() -> PeerExchange | None:
    found = agree(None)
    number, token = jax.process_index(), found["token"]
    for address in found["addresses"]:
        with contextlib.suppress(OSError):
            lead = connect(address)
            send_line([lead], {"process": number, "token": token})
            if read_line(lead, LINE_SECONDS) == {"accepted": token}:
                return PeerExchange(number, Connections({0: lead}))
            lead.close()
    return None


def _addresses(port: int) -> Sequence[str]:
    """Return the addresses at which other machines may reach this one, the most likely first."""
    found: list[str] = []
    for family, nobody in _ELSEWHERE:
        with contextlib.suppress(OSError):
            found.append(address_towards((nobody, 9), family))
    return [f"[{host}]:{port}" for host in [*found, socket.gethostname(), "127.0.0.1"]]
