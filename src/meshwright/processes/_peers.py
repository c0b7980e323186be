"""Watches the other processes of a run, and ends this process when one of them is gone.

JAX notices a dead process by its heartbeat, much later, and then aborts the others in C++ with exit code 134.
Until then they hang in a collective, or fail in one that does not say which process is gone. So each process
keeps a connection to process 0, which the system closes when a process ends, for whatever reason. Messages:

    process 3 -> 0, 0 -> all     {"end": 2}         it is at the end of its program, where all wait for all,
                                                    and has begun two pieces of shared work
    0 -> all, and each answers   {"over": true}     all are at the end of their programs
    process 3 -> 0, 0 -> all     {"left": 1}        it has failed, and ends with this exit code
    0 -> all the others          {"gone": 3, "how": "ended with exit code 1"}
    process 3 -> 0, 0 -> all     {"process": 3, "stream": 2, "end": [7]}   see `_streams.py`
    any -> all by way of 0       {"differ": "the examples end on ..."}     all end because of this difference
    any -> all by way of 0       {"word": "waits"}  a short text for other parts of the program

If a connection ends without such a message, its process was killed. If it breaks in another way, only the
network has failed: then JAX's heartbeat decides whether the process is dead.
"""

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from meshwright.base._internal import print_line
from meshwright.errors import EXIT_PEERS, EXIT_USAGE, MeshwrightError, PeersError, UsageError
from meshwright.processes._member import close_in_forks, member
from meshwright.processes._sockets import Connections
from meshwright.processes._streams import End, Streams

_OWN_END_SECONDS = 3
"""The seconds for a process to fail by itself, of the same mistake or in a collective, and to clean up."""
_LEAD_DELAY_SECONDS = 1
"""The additional seconds for process 0. It ends last, because JAX aborts the others when it ends."""
_SHUTDOWN_SECONDS = 5
"""The seconds for JAX to shut down. Its notice of a late signal waits for processes that have left."""
_FINISH_SECONDS = 10
"""The seconds for work that should be finished. Another process's part of a save may never come."""
_NOTICE_AFTER_SECONDS = 5
_POLL_SECONDS = 0.1
_PRINT_SECONDS = 1
_EARLY = "has ended its program early"
_RELAYED = {"differ", "word"}
"""The keys of messages that process 0 sends on to all others."""

_LOST = re.compile(
    r"(Gloo|NCCL|RCCL|MPI)\b.*(closed by peer|reset by peer|Broken pipe|Connection refused|[Tt]imed? ?out"
    r"|remote process|network error|system error)"
    r"|coordination service|[Hh]eartbeat|GetKeyValue|tasks? .*(unhealthy|died)|Barrier .*(failed|timed out)",
    re.DOTALL,
)
"""The texts of JAX's errors that come from the loss of another process."""


def watch_peers(connections: Connections) -> "Watch":
    """Watch the processes at the other ends of `connections`, until this process ends."""
    member.watch = watch = Watch(connections)
    close_in_forks(connections)
    connections.attach(watch.on_message, watch.poll)
    return watch


def announce_exit(exit_code: int, *why: str) -> None:
    """Tell the other processes that this one has failed and ends now. Then they end, too."""
    for line in why:
        _print(line)
    if member.watch:
        member.watch.over = True
        member.watch.send({"left": exit_code})


def leave_together() -> None:
    """Leave JAX's runtime together with the other processes, at the end of the program."""
    if member.watch:
        member.watch.is_at_end = True
        member.watch.send({"end": member.watch.num_shared})
        member.watch.end_if_all()
        jax.distributed.shutdown()
        member.watch.over = True


def begin_shared() -> None:
    """Count a piece of work that needs all processes."""
    if member.watch:
        member.watch.begin_shared()


def send_to_all(word: str) -> None:
    """Send a short text to all other processes. Not collective, and it never waits for long."""
    if member.watch:
        member.watch.send({"word": word})


@contextlib.contextmanager
def receiving(on_word: Callable[[str], None]) -> Iterator[None]:
    """Receive the texts that other processes send with `send_to_all`, in the block."""
    outer, member.on_word = member.on_word, on_word
    try:
        yield
    finally:
        member.on_word = outer


def lost_peer(error: BaseException) -> MeshwrightError | None:
    """Return an error that explains `error` if it only comes from the loss of another process, else None.

    The result is a `PeersError`, or the difference between the processes because of which all end.
    """
    if isinstance(error, PeersError):
        return error
    if not isinstance(error, RuntimeError | ValueError) or not _LOST.search(str(error)):
        return None
    # A connection of a collective may break shortly before ours.
    if member.watch and member.watch.is_lost.wait(_OWN_END_SECONDS - 1):
        return member.watch.error()
    return PeersError(
        f"the connection to another process of this run is lost: {str(error).splitlines()[0]}\n"
        "  Look at the messages of the other processes, and run the same command again."
    )


@contextlib.contextmanager
def delaying_exit() -> Iterator[None]:
    """Let the block end, for ten seconds at most, before this process is ended because another is gone."""
    with member.lock:
        member.num_unfinished += 1
    try:
        yield
    finally:
        with member.lock:
            member.num_unfinished -= 1


class Watch:
    """Takes the messages of the other processes, and ends this one in time when another is gone."""

    def __init__(self, connections: Connections):
        self._connections = connections
        self._at_end: dict[int, int] = {}
        self.num_shared = 0
        """The number of pieces of shared work that this process has begun."""
        self._notice_at = float("inf")
        self._due = self._latest = self._leave_at = float("inf")
        self._has_printed = False
        self.is_lost, self.lost = threading.Event(), ""
        """An event that is set when this process cannot go on, and the reason."""
        self._exit_code = EXIT_PEERS
        self.streams = Streams()
        """The streams of examples that this process reads."""
        self.over = self.is_at_end = self.was_joined = False
        """True if this process: is about to end by itself; is at the end of its program; has joined JAX's
        runtime."""

    def send(self, message: Mapping[str, Any], *, but: int | None = None) -> None:
        """Send a message to all connected processes except `but`. Never waits for long."""
        self._connections.broadcast(message, but=but)

    def poll(self) -> float | None:
        """Print and do what is due, and return the seconds until the next call; None if nothing is due."""
        self._notify_if_due()
        self._end_if_due()
        return None if min(self._due, self._notice_at, self._leave_at) == float("inf") else _POLL_SECONDS

    def on_message(self, number: int, message: Any) -> None:
        """Handle a message of a process; None when its connection has ended."""
        if message is not None:
            self._handle(number, message)
        elif number not in self._at_end:
            self._lose(number, "is gone: it was killed, or ended in the middle")
            # JAX is about to abort this process.
            if number == 0:
                self._due = self._latest = min(self._due, time.monotonic())

    def _handle(self, number: int, message: Any) -> None:
        if number != 0 and _RELAYED & message.keys():  # this is process 0
            self.send(message, but=number)
        match message:
            case {"end": int(num_shared)}:
                self._at_end[number] = num_shared
                self._notice_at = min(self._notice_at, time.monotonic() + _NOTICE_AFTER_SECONDS)
                self._lose_ended()
                self.end_if_all()
            case {"over": True}:
                self._leave_at = time.monotonic() + _SHUTDOWN_SECONDS + (_LEAD_DELAY_SECONDS if number else 0)
                if number == 0:
                    # This wakes the thread of process 0.
                    self.send(message)
            case {"left": int(code)}:
                self._lose(number, f"ended with exit code {code}")
            case {"gone": int(other), "how": str(how)}:
                self._lose(other, how)
            case {"process": int(process_id), "stream": int(stream), "end": list(end)}:
                self._end_if_different(self.streams.take(stream, process_id, end))
            case {"differ": str(text)}:
                self._end_for(text, EXIT_USAGE)
            case {"word": str(word)} if member.on_word:
                member.on_word(word)

    def end_if_all(self) -> None:
        """If this is process 0 and all are at the end of their programs, tell them so."""
        others = self._connections.others
        if 0 not in others and self.is_at_end and self._at_end.keys() == others:
            self.send({"over": True})

    def begin_shared(self) -> None:
        self.num_shared += 1
        self._lose_ended()
        self.check()

    def read(self, stream: int, count: int, end: End | None) -> None:
        """Note how many batches of a stream this process has read, and tell the others if an epoch has
        ended.
        """
        if end is not None:
            self.send({"process": jax.process_index(), "stream": stream, "end": end})
        self._end_if_different(self.streams.read(stream, count, end))
        self.check()

    def check(self) -> None:
        """Raise an error if this process cannot go on."""
        if self.lost:
            raise self.error()

    def check_for_difference(self) -> None:
        """Raise a `UsageError` if this process cannot go on because the processes differ."""
        if self._exit_code == EXIT_USAGE:
            self.check()

    def error(self) -> MeshwrightError:
        """Return an error with the reason why this process cannot go on."""
        return UsageError(self.lost) if self._exit_code == EXIT_USAGE else PeersError(self.lost)

    def _end_if_different(self, difference: str | None) -> None:
        if difference is not None and not self.lost:
            text = (
                f"{difference} on process {jax.process_index()}.\n"
                "  All processes must read the same examples: give each the same files in the same order."
            )
            self.send({"differ": text})
            self._end_for(text, EXIT_USAGE)

    def _lose_ended(self) -> None:
        """Note as lost the processes that have ended without beginning the current shared work."""
        for number, num_shared in list(self._at_end.items()):
            if num_shared < self.num_shared:
                self._lose(number, _EARLY)

    def _lose(self, number: int, how: str) -> None:
        """Note that a process is gone, unless one is gone already, and prepare the end of this process."""
        if self.lost or (self.was_joined and not jax.distributed.is_initialized()):
            # In the second case all processes have ended normally.
            return
        self.send({"gone": number, "how": how}, but=number)
        self._end_for(
            f"process {number} {how}, and this process cannot go on without it.\n"
            f"  Look at the messages of process {number}, and run the same command again.",
            EXIT_PEERS,
        )

    def _end_for(self, reason: str, exit_code: int) -> None:
        """End this process soon, unless it ends by itself or already ends for another reason."""
        if self.lost:
            return
        # The reason is set last, as other threads look at `lost` first.
        self._exit_code, self.lost = exit_code, reason
        delay = 0 if 0 in self._connections.others else _LEAD_DELAY_SECONDS
        self._due = time.monotonic() + _OWN_END_SECONDS + delay
        self._latest = time.monotonic() + _FINISH_SECONDS + delay
        self.is_lost.set()

    def _notify_if_due(self) -> None:
        if time.monotonic() < self._notice_at:
            return
        self._notice_at = float("inf")
        if not self.is_at_end and not self.lost:
            names = ", ".join(map(str, sorted(self._at_end)))
            _print(f"process {names} is at the end of its program, and waits for all other processes")

    def _end_if_due(self) -> None:
        if not self.over and time.monotonic() >= self._leave_at:
            if sys.stdout is not None:
                sys.stdout.flush()
            os._exit(member.exit_code)
        if self.over or time.monotonic() < self._due:
            return
        if not self._has_printed:
            self._has_printed = True
            _print(f"error: {self.lost}")
        if not member.num_unfinished or time.monotonic() >= self._latest:
            os._exit(self._exit_code)


def _print(text: str) -> None:
    """Print to stderr, but never wait for long: its pipe may be full, or a thread that hangs has its lock."""
    line = f"meshwright: {text}"
    printing = threading.Thread(target=lambda: print_line(line, sys.stderr), daemon=True)
    printing.start()
    printing.join(_PRINT_SECONDS)
