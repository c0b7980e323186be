"""Exchange of messages between the processes of a run, over connections that stay open until it ends.

With these, processes compare their settings before they all run a program: no device is used, nothing is
compiled, and a process that fails can say so. Each process is connected to process 0. The messages are in
rounds, which all processes count alike:

    process 3 -> 0   {"round": 7, "value": ...}    or   {"round": 7, "failure": {"kind": ..., "message": ...}}
    0 -> process 3   {"round": 7, "result": ...}   or   {"round": 7, "failure": ...}

A failure ends the round at once, for all processes. Later messages of a round that has ended are ignored.
Only one thread at a time may use an exchange.
"""

import contextlib
import queue
import sys
import time
from collections.abc import Callable, Mapping, Set
from typing import Any

import jax

from meshwright.base._internal import print_line
from meshwright.errors import PeersError, ranges
from meshwright.processes._agree import Failure, error_of, failure_of, gather
from meshwright.processes._sockets import Connections

_LEAD_NOTICE_AFTER_SECONDS = 10
_OTHERS_NOTICE_AFTER_SECONDS = 30
"""Later than process 0, which knows which processes are late: this is for when process 0 itself is late."""
_CHECK_SECONDS = 1

Combine = Callable[[list[Any]], Any]
"""A pure function from the values of all processes, in their order, to a result. All are values of JSON."""


class _OverConnections:
    """The state of an exchange over connections."""

    def __init__(self, process_id: int, connections: Connections):
        self.connections, self._rounds = connections, _Rounds(connections)
        self.process_id = process_id
        """The number of this process."""
        self.remote_error: Exception | None = None
        """The last error that came from another process."""
        self.while_waiting: Callable[[], None] = lambda: None
        """Called now and then while `all_reduce` waits; an error that it raises ends the wait."""

    def close(self) -> None:
        """Close all connections."""
        self.connections.close()


class LeadExchange(_OverConnections):
    """The exchange of process 0, which is connected to each other process."""

    def __init__(self, connections: Connections):
        super().__init__(0, connections)

    def all_reduce(self, about: str, value: Any, combine: Combine) -> Any:
        """Return the result of combining the values of all processes, the same on all. Collective."""
        self._rounds.begin()
        try:
            values = {0: value, **self._receive_all(about)}
            result = combine([values[number] for number in range(len(values))])
        except Exception as error:  # any error must reach the other processes
            self._rounds.send({"failure": failure_of(error)})
            raise
        self._rounds.send({"result": result})
        return result

    def send_failure(self, failure: Failure) -> None:
        """Send a failure in place of this process's next value. Not collective, and never waits."""
        self._rounds.begin()
        self._rounds.send({"failure": failure_of(error_of(failure, 0))})

    def _receive_all(self, about: str) -> dict[int, Any]:
        """Return the values of all other processes."""
        values: dict[int, Any] = {}
        notice = _Notice(_LEAD_NOTICE_AFTER_SECONDS)
        while missing := self.connections.others - values.keys():
            number, message = self._rounds.next(
                missing,
                lambda: (
                    self.while_waiting(),
                    notice(f"process 0 waits for process {ranges(missing)}, to compare {about}"),
                ),
            )
            if message is None:
                self.remote_error = PeersError(
                    f"process {number} has ended before the processes compared {about}. Look at its messages."
                )
                raise self.remote_error
            if "failure" in message:
                self.remote_error = error_of(message["failure"], number)
                raise self.remote_error
            values[number] = message["value"]
        return values


class PeerExchange(_OverConnections):
    """The exchange of any other process, which is connected to process 0."""

    def all_reduce(self, about: str, value: Any, combine: Combine) -> Any:
        self._rounds.begin()
        self._rounds.send({"value": value})
        notice = _Notice(_OTHERS_NOTICE_AFTER_SECONDS)
        _, message = self._rounds.next(
            {0},
            lambda: (
                self.while_waiting(),
                notice(f"process {self.process_id} waits for process 0, to compare {about}"),
            ),
        )
        if message is None:
            self.remote_error = PeersError(
                f"process 0 has ended before the processes compared {about}. Look at its messages."
            )
            raise self.remote_error
        if "failure" in message:
            self.remote_error = error_of(message["failure"])
            raise self.remote_error
        return message["result"]

    def send_failure(self, failure: Failure) -> None:
        self._rounds.begin()
        self._rounds.send({"failure": failure})


class _Rounds:
    """Sends and receives the messages of one round after the other, and ignores those of earlier rounds."""

    def __init__(self, connections: Connections):
        self._connections, self._round = connections, 0
        self._early: list[tuple[int, Any]] = []
        self._gone: set[int] = set()

    def begin(self) -> None:
        self._round += 1

    def send(self, message: Mapping[str, Any]) -> None:
        for number in self._connections.others:
            # The process has ended, and may have sent the reason.
            with contextlib.suppress(OSError):
                self._connections.send(number, {"round": self._round, **message})

    def next(self, missing: Set[int], notify: Callable[[], object]) -> tuple[int, Any]:
        """Return a process and its message in this round, or None as its message if it has ended."""
        while True:
            arrived = ((number, message) for number, message in self._early if number in missing)
            early = next((pair for pair in arrived if pair[1]["round"] == self._round), None)
            if early is not None:
                self._early.remove(early)
                return early
            if ended := self._gone & missing:
                return min(ended), None
            try:
                number, message = self._connections.rounds.get(timeout=_CHECK_SECONDS)
            except queue.Empty:
                notify()
                continue
            if message is None:
                self._gone.add(number)
            else:
                self._early.append((number, message))


class DeviceExchange:
    """An exchange by collectives, for processes that cannot connect. It cannot send failures."""

    def __init__(self) -> None:
        self.process_id = jax.process_index()
        self.remote_error: Exception | None = None
        self.while_waiting: Callable[[], None] = lambda: None

    def all_reduce(self, about: str, value: Any, combine: Combine) -> Any:
        return combine(gather(value))

    def send_failure(self, failure: Failure) -> None:
        pass

    def close(self) -> None:
        pass


Exchange = LeadExchange | PeerExchange | DeviceExchange
"""The connection of this process to the other processes."""


class _Notice:
    """Prints a line once, when a wait gets long."""

    def __init__(self, after_seconds: float):
        self._notice_time: float | None = time.monotonic() + after_seconds

    def __call__(self, text: str) -> None:
        if self._notice_time is not None and time.monotonic() > self._notice_time:
            self._notice_time = None
            print_line(f"meshwright: {text}", sys.stderr)
