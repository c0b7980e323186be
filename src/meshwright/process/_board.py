"""Connections between process 0 and each other process, kept from the roll call until the run ends.

By them processes agree before there is a program that all run: no device takes part, nothing compiles, and
one that fails meanwhile can say so. Process 0 asks, in rounds that all count alike:

    process 3 -> 0   {"round": 7, "said": ...}     or   {"round": 7, "failure": {"kind": ..., "message": ...}}
    0 -> process 3   {"round": 7, "answer": ...}   or   {"round": 7, "failure": ...}

A failure ends the round at once, for all. What is left of an ended round is passed over in the next.
"""

import contextlib
import selectors
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax

from meshwright.errors import MeshwrightError, PeersError
from meshwright.process._agree import gather
from meshwright.process._failures import Failure, error_of, failure_of
from meshwright.process._wire import ranges, receive, send, stay_connected

_LEAD_REMARKS_AFTER_SECONDS = 10
_OTHERS_REMARK_AFTER_SECONDS = 30
"""Process 0 knows who is waited for; this is for when it is process 0 itself."""
_LOOK_EVERY_SECONDS = 1

Decide = Callable[[list[Any]], Any]
"""What follows from what the processes said, in their order. Pure: of JSON's values."""


class Board(Protocol):
    """Where the processes of a run meet. For one thread at a time."""

    number: int
    """This process's."""
    heard: Exception | None
    """The last error that came from another process."""

    def ask(self, about: str, said: Any, decide: Decide) -> Any:
        """Return what `decide` makes of what each process `said`, the same on all. Collective.

        Raises:
          PeersError: a process has left.
          MeshwrightError: a process told of its failure instead.
        """
        ...

    def tell(self, failure: Failure) -> None:
        """Tell of a failure instead of what the others ask, now or next. Not collective, and never waits."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


class LeadBoard:
    """Process 0's side: a connection to each other process."""

    def __init__(self, peers: Mapping[int, socket.socket]):
        self.number = 0
        self.heard: Exception | None = None
        self._peers, self._round = dict(peers), 0
        for peer in self._peers.values():
            stay_connected(peer)

    def ask(self, about: str, said: Any, decide: Decide) -> Any:
        self._round += 1
        try:
            heard = {0: said, **self._heard(about)}
            answer = decide([heard[number] for number in range(len(heard))])
        except MeshwrightError as error:
            self._send({"failure": failure_of(error)})
            raise
        self._send({"answer": answer})
        return answer

    def tell(self, failure: Failure) -> None:
        self._round += 1
        self._send({"failure": failure_of(error_of(failure, 0))})

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()

    def _heard(self, about: str) -> dict[int, Any]:
        """Return what each other process says."""
        heard: dict[int, Any] = {}
        remark = _Remark(_LEAD_REMARKS_AFTER_SECONDS)
        with selectors.DefaultSelector() as waiting:
            for number, peer in self._peers.items():
                waiting.register(peer, selectors.EVENT_READ, number)
            while len(heard) < len(self._peers):
                missing = self._peers.keys() - heard.keys()
                remark(f"process 0 waits for process {ranges(missing)} to come to {about}")
                for key, _ in waiting.select(_LOOK_EVERY_SECONDS):
                    message = self._message(key.data, about)
                    if message["round"] == self._round:
                        heard[key.data] = message["said"]
                        waiting.unregister(self._peers[key.data])
        return heard

    def _message(self, number: int, about: str) -> dict[str, Any]:
        try:
            message = receive(self._peers[number])
        except (OSError, ValueError) as error:
            self.heard = PeersError(
                f"process {number} has left before it came to {about}; see its own messages ({error})."
            )
            raise self.heard from None
        if "failure" in message and message["round"] == self._round:
            self.heard = error_of(message["failure"], number)
            raise self.heard
        return message

    def _send(self, message: dict[str, Any]) -> None:
        for peer in self._peers.values():
            with contextlib.suppress(OSError):  # who has left need not hear it
                send(peer, {"round": self._round, **message})


class PeerBoard:
    """Another process's side: its connection to process 0."""

    def __init__(self, process_id: int, lead: socket.socket):
        self.number = process_id
        self.heard: Exception | None = None
        self._lead, self._round = lead, 0
        stay_connected(lead)

    def ask(self, about: str, said: Any, decide: Decide) -> Any:
        self._round += 1
        remark = _Remark(_OTHERS_REMARK_AFTER_SECONDS)
        with contextlib.suppress(OSError):  # who has left may have said why
            send(self._lead, {"round": self._round, "said": said})
        try:
            while True:
                self._wait(lambda: remark(f"process {self.number} waits for process 0 to come to {about}"))
                message = receive(self._lead)
                if message["round"] == self._round:
                    break
        except (OSError, ValueError) as error:
            self.heard = PeersError(f"process 0 has left before {about}; see its own messages ({error}).")
            raise self.heard from None
        if "failure" in message:
            self.heard = error_of(message["failure"])
            raise self.heard
        return message["answer"]

    def tell(self, failure: Failure) -> None:
        self._round += 1
        with contextlib.suppress(OSError):
            send(self._lead, {"round": self._round, "failure": failure})

    def close(self) -> None:
        self._lead.close()

    def _wait(self, remark: Callable[[], None]) -> None:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._lead, selectors.EVENT_READ)
            while not waiting.select(_LOOK_EVERY_SECONDS):
                remark()


class DeviceBoard:
    """The same by collectives, for processes that cannot connect: a failure is not told to the others."""

    def __init__(self) -> None:
        self.number = jax.process_index()
        self.heard: Exception | None = None

    def ask(self, about: str, said: Any, decide: Decide) -> Any:
        return decide(gather(said))

    def tell(self, failure: Failure) -> None:
        pass

    def close(self) -> None:
        pass


class _Remark:
    """A line for the person at the screen, once, when waiting gets long."""

    def __init__(self, after_seconds: float):
        self._at: float | None = time.monotonic() + after_seconds

    def __call__(self, text: str) -> None:
        if self._at is not None and time.monotonic() > self._at:
            self._at = None
            print(f"meshwright: {text}", file=sys.stderr, flush=True)
