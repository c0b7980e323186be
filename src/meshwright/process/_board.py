"""Connections between process 0 and each other process, kept from the roll call until the run ends.

By them processes agree before there is a program that all run: no device takes part, nothing compiles, and
one that fails meanwhile can say so. Process 0 asks, in rounds that all count alike:

    process 3 -> 0   {"round": 7, "said": ...}     or   {"round": 7, "failure": {"kind": ..., "message": ...}}
    0 -> process 3   {"round": 7, "answer": ...}   or   {"round": 7, "failure": ...}

A failure ends the round at once, for all. What is left of an ended round is passed over in the next.
"""

import contextlib
import queue
import sys
import time
from collections.abc import Callable, Mapping, Set
from typing import Any, Protocol

import jax

from meshwright.errors import MeshwrightError, PeersError
from meshwright.process._agree import gather
from meshwright.process._failures import Failure, error_of, failure_of
from meshwright.process._post import Post
from meshwright.process._sockets import ranges

_LEAD_REMARKS_AFTER_SECONDS = 10
_OTHERS_REMARK_AFTER_SECONDS = 30
"""Process 0 knows who is waited for; this is for when it is process 0 itself."""
_LOOK_EVERY_SECONDS = 1

Decide = Callable[[list[Any]], Any]
"""A pure function from the messages of the processes, in their order, to the answer; all are JSON values."""


class Board(Protocol):
    """The place where the processes of a run exchange messages. For one thread at a time."""

    number: int
    """This process's."""
    heard: Exception | None
    """The last error that came from another process."""

    def ask(self, about: str, said: Any, decide: Decide) -> Any:
        """Return what `decide` makes of what each process `said`, the same on all. Collective.

        Raises:
          PeersError: A process has left.
          MeshwrightError: A process told of its failure instead.
        """
        ...

    def tell(self, failure: Failure) -> None:
        """Tell of a failure instead of what the others ask, now or next. Not collective, and never waits."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


class LeadBoard:
    """Process 0's side: it is connected to each other process."""

    def __init__(self, post: Post):
        self.number, self.post, self._rounds = 0, post, _Rounds(post)
        self.heard: Exception | None = None

    def ask(self, about: str, said: Any, decide: Decide) -> Any:
        self._rounds.begin()
        try:
            heard = {0: said, **self._heard(about)}
            answer = decide([heard[number] for number in range(len(heard))])
        except MeshwrightError as error:
            self._rounds.send({"failure": failure_of(error)})
            raise
        self._rounds.send({"answer": answer})
        return answer

    def tell(self, failure: Failure) -> None:
        self._rounds.begin()
        self._rounds.send({"failure": failure_of(error_of(failure, 0))})

    def close(self) -> None:
        """End all connections."""
        self.post.close()

    def _heard(self, about: str) -> dict[int, Any]:
        """Return what each other process says."""
        heard: dict[int, Any] = {}
        remark = _Remark(_LEAD_REMARKS_AFTER_SECONDS)
        while missing := self.post.others - heard.keys():
            number, message = self._rounds.next(
                missing, lambda: remark(f"process 0 waits for process {ranges(missing)}, to compare {about}")
            )
            if message is None:
                self.heard = PeersError(
                    f"process {number} has left before the processes compared {about}. Its own "
                    "messages say why."
                )
                raise self.heard
            if "failure" in message:
                self.heard = error_of(message["failure"], number)
                raise self.heard
            heard[number] = message["said"]
        return heard


class PeerBoard:
    """Another process's side: it is connected to process 0."""

    def __init__(self, process_id: int, post: Post):
        self.number, self.post, self._rounds = process_id, post, _Rounds(post)
        self.heard: Exception | None = None

    def ask(self, about: str, said: Any, decide: Decide) -> Any:
        self._rounds.begin()
        self._rounds.send({"said": said})
        remark = _Remark(_OTHERS_REMARK_AFTER_SECONDS)
        _, message = self._rounds.next(
            {0}, lambda: remark(f"process {self.number} waits for process 0, to compare {about}")
        )
        if message is None:
            self.heard = PeersError(
                f"process 0 has left before the processes compared {about}. Its own messages say why."
            )
            raise self.heard
        if "failure" in message:
            self.heard = error_of(message["failure"])
            raise self.heard
        return message["answer"]

    def tell(self, failure: Failure) -> None:
        self._rounds.begin()
        self._rounds.send({"failure": failure})

    def close(self) -> None:
        """End the connection."""
        self.post.close()


class _Rounds:
    """The messages of one round after the other. Those of rounds that have ended are passed over."""

    def __init__(self, post: Post):
        self._post, self._number = post, 0
        self._early: list[tuple[int, Any]] = []
        self._gone: set[int] = set()

    def begin(self) -> None:
        self._number += 1

    def send(self, message: Mapping[str, Any]) -> None:
        for number in self._post.others:
            with contextlib.suppress(OSError):  # who has left need not hear it, and may have said why
                self._post.send(number, {"round": self._number, **message})

    def next(self, missing: Set[int], waiting: Callable[[], None]) -> tuple[int, Any]:
        """Return the next of the `missing` processes and its message, or None if it has gone."""
        while True:
            early = next((each for each in self._early if self._is_due(*each, missing)), None)
            if early is not None:
                self._early.remove(early)
                return early
            if gone := self._gone & missing:
                return min(gone), None
            try:
                number, message = self._post.rounds.get(timeout=_LOOK_EVERY_SECONDS)
            except queue.Empty:
                waiting()
                continue
            if message is None:
                self._gone.add(number)
            else:
                self._early.append((number, message))

    def _is_due(self, number: int, message: Mapping[str, Any], missing: Set[int]) -> bool:
        return number in missing and message["round"] == self._number


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
