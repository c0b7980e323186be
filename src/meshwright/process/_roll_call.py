"""Find out who is missing before JAX does, which would end the process instead of saying so.

`jax.distributed.initialize` aborts in C++ when a process does not come: exit code 134, a stack trace and
no names. So process 0 first listens for a while itself, at the address where JAX's coordinator will listen:

    process 3 -> 0   {"process": 3, "of": 8}
    0 -> process 3   {"go": true}    or   {"error": "5 of 8 processes arrived ..."}

One JSON line each way. Until all are there the connections stay open, so that everybody hears the answer; and
afterwards, so that each process hears when another is gone (`_peers.py`).
Sockets go straight to the address, whatever proxies the environment names.
"""

import contextlib
import errno
import json
import os
import socket
import sys
import time
from collections.abc import Iterable
from typing import Any

from meshwright.errors import PeersError

_REMARK_AFTER_SECONDS = 10
_RETRY_SECONDS = 0.2
_CONNECT_SECONDS = 5
_LINE_SECONDS = 5
"""How long somebody who is connected may take to say one line."""
_SERVED_SECONDS = 30


def roll_call(
    coordinator: str, num_processes: int, process_id: int, *, timeout_seconds: float
) -> dict[int, socket.socket]:
    """Return when all `num_processes` have called this: the connections to others by their numbers, open.

    Process 0 has one to each of the others, and these to process 0. Collective, but touches no device.

    Raises:
      PeersError: on every process that came, when others did not come in time, when two have the same id,
        when they differ about their number, or when process 0 cannot listen at `coordinator`.
    """
    patience = _Patience(timeout_seconds)
    if process_id == 0:
        return _Roll(coordinator, num_processes).call(patience)
    return {0: _answer(coordinator, num_processes, process_id, patience)}


def wait_until_served(coordinator: str) -> None:
    """Return when somebody listens at `coordinator`; JAX's client, coming too early, would sleep a second.

    Raises:
      PeersError: process 0 called the roll, but then did not start JAX's coordinator.
    """
    end = time.monotonic() + _SERVED_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError), _connect(coordinator):
            return
        time.sleep(0.01)
    raise PeersError(f"process 0 was there, but JAX's coordinator at {coordinator} is not; see its messages.")


class _Patience:
    """A time limit, and one remark to the person at the screen when the waiting gets long."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._start = time.monotonic()
        self._remarked = False

    def left_seconds(self) -> float:
        return self._start + self.seconds - time.monotonic()

    def remark(self, text: str) -> None:
        waited_seconds = self.seconds - self.left_seconds()
        if waited_seconds > _REMARK_AFTER_SECONDS and not self._remarked:
            self._remarked = True
            print(
                f"meshwright: {text}; giving up in {self.left_seconds():.0f} s", file=sys.stderr, flush=True
            )


class _Roll:
    """Process 0's list: a connection to each process that has come."""

    def __init__(self, coordinator: str, num_processes: int):
        self._coordinator = coordinator
        self._num_processes = num_processes
        self._present: dict[int, socket.socket] = {}

    def call(self, patience: _Patience) -> dict[int, socket.socket]:
        try:
            with _listen(self._coordinator) as listener:
                self._assemble(listener, patience)
        except PeersError as error:
            _tell(self._present.values(), {"error": str(error)})
            for peer in self._present.values():
                peer.close()
            raise
        # The listener is closed before anybody is let go: who then connects again reaches JAX.
        _tell(self._present.values(), {"go": True})
        return self._present

    def _assemble(self, listener: socket.socket, patience: _Patience) -> None:
        others = self._num_processes - 1
        while len(self._present) < others:
            patience.remark(f"process 0 waits at {self._coordinator} for process {self._missing()}")
            if patience.left_seconds() <= 0:
                self._forget_leavers()
                raise PeersError(self._too_few(patience.seconds))
            listener.settimeout(min(1, max(patience.left_seconds(), 0.01)))
            with contextlib.suppress(TimeoutError):
                self._admit(listener.accept()[0])
            if len(self._present) == others:
                self._forget_leavers()

    def _forget_leavers(self) -> None:
        for process_id in [number for number, peer in self._present.items() if not _is_connected(peer)]:
            self._present.pop(process_id).close()

    def _missing(self) -> str:
        return _ranges(set(range(1, self._num_processes)) - self._present.keys())

    def _too_few(self, seconds: float) -> str:
        return (
            f"{len(self._present) + 1} of {self._num_processes} processes arrived at {self._coordinator} "
            f"within {seconds:g} s; missing: {self._missing()}. Look at the missing processes' own messages, "
            f"and check that all were started, can reach this address and were told the same one."
        )

    def _admit(self, peer: socket.socket) -> None:
        match _read(peer, _LINE_SECONDS):
            case {"process": int(process_id), "of": int(num_processes)}:
                problem = self._problem(peer, process_id, num_processes)
            case _:
                peer.close()  # a port scanner or a health check: not one of ours
                return
        if problem:
            _tell([peer], {"error": problem})
            peer.close()
            raise PeersError(problem)
        self._present[process_id] = peer

    def _problem(self, peer: socket.socket, process_id: int, num_processes: int) -> str | None:
        if num_processes != self._num_processes:
            return (
                f"process {process_id} was told that there are {num_processes} processes, process 0 that "
                f"there are {self._num_processes}. Start all with the same number."
            )
        if process_id in self._present:
            self._forget_leavers()  # it may have left and been started again
        if process_id in self._present:
            return (
                f"two processes were both started as process {process_id}, on "
                f"{_host(self._present[process_id])} and on {_host(peer)}. Each of the "
                f"{self._num_processes} needs its own number."
            )
        return None


def _listen(coordinator: str) -> socket.socket:
    """Listen on all interfaces, as JAX will do at the same port."""
    port = _split(coordinator)[1]
    families = [socket.AF_INET6, socket.AF_INET] if socket.has_dualstack_ipv6() else [socket.AF_INET]
    for family in families:
        both = family == socket.AF_INET6
        try:
            return socket.create_server(("", port), family=family, backlog=4096, dualstack_ipv6=both)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            if error.errno == errno.EADDRINUSE:
                break
    raise PeersError(
        f"process 0 cannot listen at {coordinator}: {reason}. Is port {port} used by another run, or by "
        f"another process that was started as process 0 too? Choose another port for the coordinator."
    )


def _answer(coordinator: str, num_processes: int, process_id: int, patience: _Patience) -> socket.socket:
    """The other processes' part: return the connection to process 0."""
    trouble = "no answer"
    while patience.left_seconds() > 0:
        patience.remark(f"process {process_id} waits for process 0 at {coordinator} ({trouble})")
        try:
            server = _connect(coordinator)
        except OSError as error:
            trouble = str(error)
        else:
            _tell([server], {"process": process_id, "of": num_processes})
            # Process 0 may have come later than this one, so its time ends later too.
            reply = _read(server, patience.seconds + _LINE_SECONDS)
            if reply == {"go": True}:
                return server
            server.close()
            if isinstance(reply, dict) and "error" in reply:
                raise PeersError(str(reply["error"]))
            trouble = "something else listens there, or process 0 has left"
        time.sleep(_RETRY_SECONDS)
    raise PeersError(
        f"process {process_id} of {num_processes} could not reach process 0 at {coordinator} within "
        f"{patience.seconds:g} s: {trouble}. Check that process 0 was started, that this is its address, "
        f"and that no firewall is between."
    )


def _connect(coordinator: str) -> socket.socket:
    return socket.create_connection(_split(coordinator), timeout=_CONNECT_SECONDS)


def _tell(peers: Iterable[socket.socket], message: dict[str, Any]) -> None:
    for peer in peers:
        with contextlib.suppress(OSError):  # who has left need not hear it
            peer.settimeout(_LINE_SECONDS)
            peer.sendall(json.dumps(message).encode() + b"\n")


def _read(peer: socket.socket, timeout_seconds: float) -> Any:
    """Return the next line as JSON, or None where nothing sensible comes. Nothing after it is read."""
    peer.settimeout(timeout_seconds)
    try:
        with peer.makefile("rb", buffering=0) as lines:
            return json.loads(lines.readline(4096))
    except (OSError, ValueError):
        return None


def _is_connected(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        return peer.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _host(peer: socket.socket) -> str:
    return peer.getpeername()[0].removeprefix("::ffff:")  # an IPv4 address on a socket for both


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _ranges(numbers: Iterable[int]) -> str:
    """Write {3, 4, 5, 9} as `3-5, 9`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)
