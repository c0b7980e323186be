"""Find out who is missing before JAX does, which would end the process instead of saying so.

`jax.distributed.initialize` aborts in C++ when a process does not come: exit code 134, a stack trace and
no names. So process 0 first listens for a while itself, at the address where JAX's coordinator will listen:

    process 3 -> 0   {"process": 3, "of": 8}
    0 -> process 3   {"go": true}    or   {"error": "5 of 8 processes arrived ..."}

One JSON line each way. Until all are there the connections stay open, so that everybody hears the answer; and
afterwards, for what else the processes have to say to each other (`_post.py`).
"""

import contextlib
import errno
import os
import socket
import sys
import time

from meshwright.errors import PeersError
from meshwright.process._board import LeadBoard, PeerBoard
from meshwright.process._post import Post
from meshwright.process._sockets import LINE_SECONDS, connect, ranges, read_line, split, tell_line

_REMARK_AFTER_SECONDS = 10
_RETRY_SECONDS = 0.2
_SERVED_SECONDS = 30


def roll_call(
    coordinator: str, num_processes: int, process_id: int, *, timeout_seconds: float
) -> LeadBoard | PeerBoard:
    """Return when all `num_processes` have called this, connected. Collective, but touches no device.

    Raises:
      PeersError: on every process that came, when others did not come in time, when two have the same id,
        when they differ about their number, or when process 0 cannot listen at `coordinator`.
    """
    patience = _Patience(timeout_seconds)
    if process_id == 0:
        return LeadBoard(Post(_Roll(coordinator, num_processes).call(patience)))
    return PeerBoard(process_id, Post({0: _answer(coordinator, num_processes, process_id, patience)}))


def wait_until_served(coordinator: str) -> None:
    """Return when somebody listens at `coordinator`; JAX's client, coming too early, would sleep a second.

    Raises:
      PeersError: process 0 called the roll, but then did not start JAX's coordinator.
    """
    end = time.monotonic() + _SERVED_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError), connect(coordinator):
            return
        time.sleep(0.01)
    raise PeersError(
        f"process 0 has started, but JAX's coordinator at {coordinator} does not answer. The messages of "
        "process 0 say why."
    )


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
            tell_line(self._present.values(), {"error": str(error)})
            for peer in self._present.values():
                peer.close()
            raise
        # The listener is closed before anybody is let go: who then connects again reaches JAX.
        tell_line(self._present.values(), {"go": True})
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
        return ranges(set(range(1, self._num_processes)) - self._present.keys())

    def _too_few(self, seconds: float) -> str:
        return (
            f"{len(self._present) + 1} of {self._num_processes} processes arrived at {self._coordinator} "
            f"within {seconds:g} s; missing: {self._missing()}. Check that these were started, and that "
            "they were given this address and can reach it; their own messages may say why not."
        )

    def _admit(self, peer: socket.socket) -> None:
        match read_line(peer, LINE_SECONDS):
            case {"process": int(process_id), "of": int(num_processes)}:
                problem = self._problem(peer, process_id, num_processes)
            case _:
                peer.close()  # a port scanner or a health check: not one of ours
                return
        if problem:
            tell_line([peer], {"error": problem})
            peer.close()
            raise PeersError(problem)
        self._present[process_id] = peer

    def _problem(self, peer: socket.socket, process_id: int, num_processes: int) -> str | None:
        if num_processes != self._num_processes:
            return (
                f"process {process_id} was started as one of {num_processes} processes, process 0 as one of "
                f"{self._num_processes}. Start all with the same number of processes."
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
    port = split(coordinator)[1]
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
        f"process 0 cannot listen at {coordinator}: {reason}. Another run may use port {port}, or two "
        "processes were started as process 0. Choose another port for the coordinator."
    )


def _answer(coordinator: str, num_processes: int, process_id: int, patience: _Patience) -> socket.socket:
    """The other processes' part: return the connection to process 0."""
    trouble = "no answer"
    while patience.left_seconds() > 0:
        patience.remark(f"process {process_id} waits for process 0 at {coordinator} ({trouble})")
        try:
            server = connect(coordinator)
        except OSError as error:
            trouble = str(error)
            time.sleep(_RETRY_SECONDS)
            continue
        tell_line([server], {"process": process_id, "of": num_processes})
        # Process 0 may have come later than this one, so its time ends later too.
        reply = read_line(server, patience.seconds + LINE_SECONDS)
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
