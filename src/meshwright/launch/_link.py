"""The connections between the launchers of several machines: each line is a `Status` or an `Order` as JSON.

Nothing that arrives is executed, and a line that is not one of these messages ends its connection.
"""

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from meshwright.errors import UsageError
from meshwright.launch import _lead, _members
from meshwright.launch._lead import Leader, Phase
from meshwright.launch._members import BEAT_SECONDS, LOST_SECONDS, Agent, Order, Status
from meshwright.processes._internal import address_towards, send_at_once, split_address

_STATUS, _ORDER = TypeAdapter(Status), TypeAdapter(Order)
_LONGEST_LINE = 1 << 20
_TICK_SECONDS = 0.2
_CONNECT_SECONDS = 3
# Connections that the system keeps until they are accepted.
_MOST_WAITING = 1000


def split(address: str) -> tuple[str, int]:
    """Return host and port of the address `host:port`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"launch hosts: --at is {address!r}; expected HOST:PORT, such as node1:29400.")
    return split_address(address)


class LeaderServer:
    """The leader as a server, to which the agents of all machines report."""

    def __init__(
        self, listening: socket.socket, leader: Leader, on_decision: Callable[[Leader, Leader], None]
    ):
        """Begin to accept connections, and to decide."""
        self.leader, self._listening, self._on_decision = leader, listening, on_decision
        self._lock = threading.Lock()
        self._connected: dict[str, Any] = {}
        self._is_closed = threading.Event()
        for work in (self._accept, self._tick):
            threading.Thread(target=work, daemon=True).start()

    def close(self) -> None:
        """Close; if the run is over, wait until all agents that can be heard know it."""
        while self.leader.phase is Phase.OVER and not _lead.is_done(self.leader, time.monotonic()):
            time.sleep(_TICK_SECONDS)
        self._is_closed.set()
        self._listening.close()

    def _tick(self) -> None:
        while not self._is_closed.wait(_TICK_SECONDS):
            with self._lock:
                self._decide()

    def _accept(self) -> None:
        while not self._is_closed.is_set():
            try:
                peer, _ = self._listening.accept()
            except OSError:
                return
            # Agents send each second. A stranger who sends nothing must not hold a thread.
            peer.settimeout(LOST_SECONDS)
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        name = None
        for status in _messages(peer, _STATUS):
            name = status.agent
            with self._lock:
                self.leader = _lead.on_status(self.leader, status, time.monotonic())
                self._connected[name] = peer
                # A decision is sent to all agents, so this one needs no answer of its own.
                if not self._decide():
                    self._answer(status)
        with self._lock:
            # The agent may have connected again before the old connection ended.
            if name is not None and self._connected.get(name) is peer:
                self.leader = _lead.on_disconnect(self.leader, name)
                self._decide()

    def _decide(self) -> bool:
        """Decide what is due; tell all agents if it changes what they do, and return whether it does."""
        previous, self.leader = self.leader, _lead.advance(self.leader, time.monotonic())
        leader = self.leader
        if leader.phase is previous.phase and leader.generation == previous.generation:
            return False
        self._on_decision(previous, leader)
        for view in leader.views.values():
            self._answer(view.status)
        return True

    def _answer(self, status: Status) -> None:
        """Send the order to an agent without waiting. If it does not fit, the next status gets another."""
        line = _ORDER.dump_json(_lead.order_for(self.leader, status)) + b"\n"
        send_at_once(self._connected[status.agent], line)


class AgentClient:
    """The state of this machine's agent, and its connection to the leader."""

    def __init__(self, agent: Agent, address: tuple[str, int]):
        """Begin to report."""
        self.agent, self.address = agent, address
        self.heard_at = time.monotonic()
        """Time of the newest order."""
        self._lock, self._is_due = threading.Lock(), threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._report, daemon=True)
        self._thread.start()

    def change(self, rule: Callable[..., Agent], *arguments: Any) -> Agent:
        """Apply a rule to the state and report it at once if it has changed; return the new state."""
        with self._lock:
            previous, self.agent = self.agent, rule(self.agent, *arguments)
        if self.agent.status != previous.status:
            self._is_due.set()
        return self.agent

    def close(self) -> None:
        """Report for the last time."""
        self._is_closed = True
        self._is_due.set()
        self._thread.join(_CONNECT_SECONDS)

    def _report(self) -> None:
        """Keep a connection to the leader, and send statuses over it."""
        while not self._is_closed:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(self.address, _CONNECT_SECONDS) as peer,
            ):
                peer.settimeout(None)
                threading.Thread(target=self._hear, args=(peer,), daemon=True).start()
                while True:
                    self._is_due.clear()
                    peer.sendall(_STATUS.dump_json(self._stamped()) + b"\n")
                    if self._is_closed:
                        break
                    # A change of the status is sent at once, and otherwise each second.
                    self._is_due.wait(BEAT_SECONDS)
            if not self._is_closed:
                time.sleep(_TICK_SECONDS)

    def _stamped(self) -> Status:
        with self._lock:
            status = replace(self.agent.status, sent=time.monotonic())
            self.agent = replace(self.agent, status=status)
        return status

    def _hear(self, peer: socket.socket) -> None:
        for order in _messages(peer, _ORDER):
            self.heard_at = time.monotonic()
            self.change(_members.on_order, order, self.heard_at)
        # Sending must fail, too, so that the agent connects again.
        with contextlib.suppress(OSError):
            peer.shutdown(socket.SHUT_RDWR)


def listening(address: tuple[str, int]) -> socket.socket | None:
    """Return a socket that listens at an address; None if another program does, or another machine has it."""
    try:
        family, kind, protocol, _, socket_address = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise UsageError(
            f"launch hosts: the host {address[0]!r} of --at is not known here: {error.strerror}. Give a name "
            "or an address that all machines can reach."
        ) from None
    server = socket.socket(family, kind, protocol)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(socket_address)
    except OSError as error:
        server.close()
        if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            return None
        raise UsageError(
            f"launch hosts: cannot listen at {address[0]}:{address[1]}: {error.strerror}."
        ) from None
    server.listen(_MOST_WAITING)
    return server


def own_address(leader_address: tuple[str, int]) -> str:
    """Return the address of this machine from which packets go to the leader; that of its name if unknown."""
    try:
        family, _, _, _, address = socket.getaddrinfo(*leader_address, type=socket.SOCK_DGRAM)[0]
        return address_towards(address, family)
    except OSError:
        return socket.gethostname()


def _messages(peer: socket.socket, kind: TypeAdapter[Any]) -> Iterator[Any]:
    """Yield the messages that arrive, until the connection ends or something else arrives."""
    with contextlib.suppress(OSError, ValueError), peer.makefile("rb") as lines:
        while line := lines.readline(_LONGEST_LINE):
            try:
                yield kind.validate_json(line)
            except ValidationError:
                break
    peer.close()
