"""The rendezvous of a run's processes: all connect to process 0, which finds out whether some are missing.

`jax.distributed.initialize` aborts in C++ if a process does not come: with exit code 134, a stack trace, and
no process ids. So process 0 first listens itself, at the address where JAX's coordinator will listen:

    process 3 -> 0   {"process": 3, "of": 8, "token": "5e0c..."}
    0 -> process 3   {"go": true}    or   {"error": "5 of 8 processes arrived ..."}

One line of JSON is sent in each direction. A launcher draws the token, for the environment of its processes.
The connections stay open afterwards, for all further messages between the processes (`_sockets.py`).

Processes that JAX has joined by itself had no rendezvous (`connect_processes`). Then process 0 listens, and
sends its addresses and a secret token to the others by a collective on the devices. On some networks
processes cannot connect; then they compare by collectives, too.
"""

import contextlib
import errno
import os
import secrets
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax

from meshwright.base._internal import print_line
from meshwright.errors import PeersError, ranges
from meshwright.processes import _sockets
from meshwright.processes._agree import agree, gather
from meshwright.processes._exchange import DeviceExchange, Exchange, LeadExchange, PeerExchange
from meshwright.processes._peers import watch_peers
from meshwright.processes._sockets import (
    LINE_SECONDS,
    Connections,
    address_towards,
    connect,
    first_lines,
    read_line,
    send_line,
)

_NOTICE_AFTER_SECONDS = 10
_RETRY_SECONDS = 0.2
_COORDINATOR_SECONDS = 30


def rendezvous(
    coordinator: str, num_processes: int, process_id: int, *, timeout_seconds: float, token: str = ""
) -> LeadExchange | PeerExchange:
    """Connect this process to process 0, and return when all have come. Collective, but uses no device."""
    wait = _Wait(timeout_seconds)
    if process_id == 0:
        return LeadExchange(Connections(_Arrivals(coordinator, num_processes, token).collect(wait)))
    hello = {"process": process_id, "of": num_processes, "token": token}
    return PeerExchange(process_id, Connections({0: _join(coordinator, hello, wait)}))


def wait_for_coordinator(coordinator: str) -> None:
    """Wait until JAX's coordinator listens. JAX's client would sleep for a second if it came too early."""
    end = time.monotonic() + _COORDINATOR_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError), connect(coordinator):
            return
        time.sleep(0.01)
    raise PeersError(
        f"process 0 has started, but JAX's coordinator at {coordinator} does not answer. Look at the "
        "messages of process 0."
    )


class _Wait:
    """A time limit, with one notice on the screen when the wait gets long."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._start = time.monotonic()
        self._has_notified = False

    def left_seconds(self) -> float:
        return self._start + self.seconds - time.monotonic()

    def notify(self, text: str) -> None:
        waited_seconds = self.seconds - self.left_seconds()
        if waited_seconds > _NOTICE_AFTER_SECONDS and not self._has_notified:
            self._has_notified = True
            print_line(f"meshwright: {text}; giving up in {self.left_seconds():.0f} s", sys.stderr)


class _Arrivals:
    """The connections of process 0 to the processes that have come."""

    def __init__(self, coordinator: str, num_processes: int, token: str):
        self._coordinator, self._num_processes, self._token = coordinator, num_processes, token
        self._arrived: dict[int, socket.socket] = {}

    def collect(self, wait: _Wait) -> dict[int, socket.socket]:
        """Return a connection to each other process, when all have come."""
        try:
            with _listen(self._coordinator) as listener:
                self._accept_all(listener, wait)
        except PeersError as error:
            send_line(self._arrived.values(), {"error": str(error)})
            for peer in self._arrived.values():
                peer.close()
            raise
        # The listener is closed first: a process that goes on and connects again must reach JAX.
        send_line(self._arrived.values(), {"go": True})
        return self._arrived

    def _accept_all(self, listener: socket.socket, wait: _Wait) -> None:
        others, arrivals = self._num_processes - 1, _sockets.first_lines(listener)
        while len(self._arrived) < others:
            if wait.left_seconds() <= 0:
                self._remove_disconnected()
                raise PeersError(self._too_few(wait.seconds))
            if arrival := next(arrivals):
                self._accept(*arrival)
            else:
                wait.notify(f"process 0 waits at {self._coordinator} for process {self._missing()}")
            if len(self._arrived) == others:
                self._remove_disconnected()

    def _remove_disconnected(self) -> None:
        for process_id in [number for number, peer in self._arrived.items() if not _is_connected(peer)]:
            self._arrived.pop(process_id).close()

    def _missing(self) -> str:
        return ranges(set(range(1, self._num_processes)) - self._arrived.keys())

    def _too_few(self, seconds: float) -> str:
        return (
            f"{len(self._arrived) + 1} of {self._num_processes} processes arrived at {self._coordinator} "
            f"within {seconds:g} s; missing: {self._missing()}. Check that these processes were started with "
            "this address and can reach it, and look at their messages."
        )

    def _accept(self, peer: socket.socket, line: Any) -> None:
        match line:
            case {"process": int(process_id), "of": int(number), "token": self._token} if _is_connected(peer):
                problem = self._problem(peer, process_id, number)
            case _:
                peer.close()  # not a process of this run
                return
        if problem:
            send_line([peer], {"error": problem})
            peer.close()
            raise PeersError(problem)
        self._arrived[process_id] = peer

    def _problem(self, peer: socket.socket, process_id: int, num_processes: int) -> str | None:
        if num_processes != self._num_processes:
            return (
                f"process {process_id} was started as one of {num_processes} processes, process 0 as one of "
                f"{self._num_processes}. Start all processes with the same number of processes."
            )
        if process_id in self._arrived:
            # The first one may have ended and been started again.
            self._remove_disconnected()
        if process_id in self._arrived:
            return (
                f"two processes were both started as process {process_id}, on "
                f"{_host(self._arrived[process_id])} and on {_host(peer)}. Give each of the "
                f"{self._num_processes} processes a different process id."
            )
        return None


def _listen(coordinator: str) -> socket.socket:
    """Return a socket that listens where JAX will do at the same port."""
    host, port = _sockets.own_host(coordinator), _sockets.split_address(coordinator)[1]
    is_dual_stack = not host and socket.has_dualstack_ipv6()
    for family in [socket.AF_INET6] * (is_dual_stack or ":" in host) + [socket.AF_INET] * (":" not in host):
        is_dual_stack = is_dual_stack and family == socket.AF_INET6
        try:
            return socket.create_server(
                (host, port), family=family, backlog=4096, dualstack_ipv6=is_dual_stack
            )
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            if error.errno == errno.EADDRINUSE:
                break
    raise PeersError(
        f"process 0 cannot listen at {coordinator}: {reason}. Another run may use port {port}, or two "
        "processes were started as process 0. Choose another port for the coordinator."
    )


def _join(coordinator: str, hello: dict[str, Any], wait: _Wait) -> socket.socket:
    """Return the connection of another process to process 0, when all processes have come."""
    process_id, num_processes, reason = hello["process"], hello["of"], "no answer"
    while wait.left_seconds() > 0:
        wait.notify(f"process {process_id} waits for process 0 at {coordinator} ({reason})")
        try:
            server = connect(coordinator)
        except OSError as error:
            reason = str(error)
            time.sleep(_RETRY_SECONDS)
            continue
        send_line([server], hello)
        # Process 0 may have come later than this one, so its time limit ends later, too.
        reply = read_line(server, wait.seconds + LINE_SECONDS)
        if reply == {"go": True}:
            return server
        server.close()
        if isinstance(reply, dict) and "error" in reply:
            raise PeersError(str(reply["error"]))
        reason = "another program listens there, one with another MESHWRIGHT_TOKEN, or process 0 has ended"
        time.sleep(_RETRY_SECONDS)
    raise PeersError(
        f"process {process_id} of {num_processes} could not reach process 0 at {coordinator} within "
        f"{wait.seconds:g} s: {reason}. Check that process 0 was started, that this is its address, and "
        "that no firewall blocks the connection."
    )


def _is_connected(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        return peer.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _host(peer: socket.socket) -> str:
    # The prefix is that of an IPv4 address on a socket for both families.
    return peer.getpeername()[0].removeprefix("::ffff:")


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
    is_dual_stack = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual_stack else socket.AF_INET
    with socket.create_server(("", 0), family=family, backlog=4096, dualstack_ipv6=is_dual_stack) as listener:
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
    offer = agree(None)
    number, token = jax.process_index(), offer["token"]
    for address in offer["addresses"]:
        with contextlib.suppress(OSError):
            lead = connect(address)
            send_line([lead], {"process": number, "token": token})
            if read_line(lead, LINE_SECONDS) == {"accepted": token}:
                return PeerExchange(number, Connections({0: lead}))
            lead.close()
    return None


def _addresses(port: int) -> Sequence[str]:
    """Return the addresses at which other machines may reach this one, the most likely first."""
    hosts: list[str] = []
    for family, nobody in _ELSEWHERE:
        with contextlib.suppress(OSError):
            hosts.append(address_towards((nobody, 9), family))
    return [f"[{host}]:{port}" for host in [*hosts, socket.gethostname(), "127.0.0.1"]]
