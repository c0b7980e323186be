"""Hear at once that another process of the run is gone, and end this one: nothing goes on without it.

JAX notices a dead process by its heartbeat, long after, and then aborts the others in C++ with exit code 134.
Until then they hang in a collective, or fail in one that says nothing of who is gone. So each process keeps
a connection to process 0, which the system closes when a process ends, whatever ends it. Its words by it:

    process 3 -> 0, 0 -> all     {"end": 2}         it is at the end of its program, where all wait for all,
                                                    and has begun two pieces of work that all share
    process 3 -> 0, 0 -> all     {"left": 1}        it has failed, and leaves with this exit code
    0 -> all the others          {"gone": 3, "how": "left with exit code 1"}
    any -> all by way of 0       {"process": 3, "stream": 2, "end": [7]}   see `_streams.py`
    any -> all by way of 0       {"differ": "the examples end on ..."}     all end, for this mistake
    any -> all by way of 0       {"word": "waits"}  a word that is for the others' rooms

A stream that ends without such a line is of a process that was killed. One that breaks in another way tells
of the network and not of the process: of that JAX's heartbeat is the judge.
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

from meshwright.errors import EXIT_PEERS, EXIT_USAGE, MeshwrightError, PeersError, UsageError
from meshwright.process._connections import Connections
from meshwright.process._member import close_in_forks, member
from meshwright.process._streams import End, Streams

_OWN_END_SECONDS = 3
"""Seconds for a process to fail by itself: of the same mistake, or in a collective, and to clean up."""
_LEAD_LINGERS_SECONDS = 1
"""When process 0 goes, JAX aborts the others. So it goes last."""
_FINISH_SECONDS = 10
"""Seconds for work that is worth finishing. Another process's part of a save may never come."""
_REMARK_AFTER_SECONDS = 5
_LOOK_EVERY_SECONDS = 0.1
_PRINT_SECONDS = 1
_EARLY = "has ended its program early"

_LOST = re.compile(
    r"(Gloo|NCCL|RCCL|MPI)\b.*(closed by peer|reset by peer|Broken pipe|Connection refused|[Tt]imed? ?out"
    r"|remote process|network error|system error)"
    r"|coordination service|[Hh]eartbeat|GetKeyValue|tasks? .*(unhealthy|died)|Barrier .*(failed|timed out)",
    re.DOTALL,
)
"""Texts in JAX's errors that are caused by another process."""


def watch_peers(connections: Connections) -> "Watch":
    """Watch the processes at the other ends of `connections` until this process ends."""
    member.watch = watch = Watch(connections)
    close_in_forks(connections)
    connections.attach(watch.take, watch.look)
    return watch


def say_left(exit_code: int) -> None:
    """Tell the others that this process has failed and leaves. They end too, but this one by itself."""
    if member.watch:
        member.watch.over = True
        member.watch.say({"left": exit_code})


def say_at_end() -> None:
    """Tell the others that this process has come to the end of its program."""
    if member.watch:
        member.watch.is_at_end = True
        member.watch.say({"end": member.watch.num_shared})


def begin_shared() -> None:
    """Count a piece of work that needs all processes.

    Raises:
      PeersError: One has ended its program, and will not come to it.
    """
    if member.watch:
        member.watch.begin_shared()


def say_to_all(word: str) -> None:
    """Let all other processes that are `hearing` know a word. Not collective, and never waits."""
    if member.watch:
        member.watch.say({"word": word})


@contextlib.contextmanager
def hearing(take: Callable[[str], None]) -> Iterator[None]:
    """Call `take` in the block with each word of another process, on a thread that must not wait."""
    before, member.take_word = member.take_word, take
    try:
        yield
    finally:
        member.take_word = before


def lost_peer(error: BaseException) -> MeshwrightError | None:
    """Return what to tell instead of `error` where that is only the loss of another process, else None.

    That is a `PeersError`, or the mistake for which all processes end.
    """
    if isinstance(error, PeersError):
        return error
    if not isinstance(error, RuntimeError | ValueError) or not _LOST.search(str(error)):
        return None
    # A connection of a collective may break a moment before ours.
    if member.watch and member.watch.told.wait(_OWN_END_SECONDS - 1):
        return member.watch.error()
    return PeersError(
        f"the connection to another process of this run is lost: {str(error).splitlines()[0]}\n"
        "  Look at the messages of the other processes, and run the same command again."
    )


@contextlib.contextmanager
def finishing() -> Iterator[None]:
    """Let the block end, within reason, before this process is ended because another is gone."""
    with member.counting:
        member.num_unfinished += 1
    try:
        yield
    finally:
        with member.counting:
            member.num_unfinished -= 1


class Watch:
    """The messages of the other processes, and the time by which this one must end."""

    def __init__(self, connections: Connections):
        self._connections = connections
        self._at_end: dict[int, int] = {}
        self.num_shared = 0
        """Pieces of work that all share, begun here."""
        self._remark_at = float("inf")
        self._due = self._latest = float("inf")
        self._said = False
        self.told, self.lost = threading.Event(), ""
        """Why this process cannot go on, and that this is known."""
        self._exit_code = EXIT_PEERS
        self.streams = Streams()
        self.over = self.is_at_end = self.was_joined = False
        """This process is about to end by itself; has come to its end; has been a part of a JAX runtime."""

    def say(self, line: Mapping[str, Any], *, but: int | None = None) -> None:
        """Tell those that are connected. Never waits."""
        self._connections.broadcast(line, but=but)

    def look(self) -> float | None:
        """Say and do what is due, and return in how many seconds to look again."""
        self._remark_if_due()
        self._end_if_due()
        return None if min(self._due, self._remark_at) == float("inf") else _LOOK_EVERY_SECONDS

    def take(self, number: int, said: Any) -> None:
        """Take a message of a process, or None when it has ended."""
        if said is not None:
            self._take(number, said)
        elif number not in self._at_end:
            self._lose(number, "is gone: it was killed, or ended in the middle")
            if number == 0:  # JAX is about to abort this process
                self._due = self._latest = min(self._due, time.monotonic())

    def _take(self, number: int, said: Any) -> None:
        match said:
            case {"end": int(num_shared)}:
                self._at_end[number] = num_shared
                self._remark_at = min(self._remark_at, time.monotonic() + _REMARK_AFTER_SECONDS)
                self._miss()
            case {"left": int(code)}:
                self._lose(number, f"left with exit code {code}")
            case {"gone": int(other), "how": str(how)}:
                self._lose(other, how)
            case {"process": int(process_id), "stream": int(stream), "end": list(end)}:
                if number != 0:
                    self.say(said, but=number)
                self._differ(self.streams.take(stream, process_id, end))
            case {"differ": str(text)}:
                if number != 0:
                    self.say(said, but=number)
                self._end_for(text, EXIT_USAGE)
            case {"word": str(word)}:
                if number != 0:
                    self.say(said, but=number)
                if member.take_word:
                    member.take_word(word)

    def begin_shared(self) -> None:
        self.num_shared += 1
        self._miss()
        self.check()

    @property
    def num_others(self) -> int:
        """The number of other processes."""
        return jax.process_count() - 1

    def read(self, stream: int, count: int, end: End | None) -> None:
        """Note that this process has read so many batches of a stream, and tell the others what has ended.

        Raises:
          UsageError: Another process differs.
        """
        if end is not None:
            self.say({"process": jax.process_index(), "stream": stream, "end": end})
        self._differ(self.streams.read(stream, count, end))
        self.check()

    def check(self) -> None:
        """Raise if this process cannot go on.

        Raises:
          UsageError: The processes differ.
          PeersError: Another process has left.
        """
        if self.lost:
            raise self.error()

    def error(self) -> MeshwrightError:
        """Return why this process cannot go on."""
        return UsageError(self.lost) if self._exit_code == EXIT_USAGE else PeersError(self.lost)

    def _differ(self, how: str | None) -> None:
        if how is not None and not self.lost:
            text = (
                f"{how} on process {jax.process_index()}.\n  All processes must read the same examples: give "
                "each of them the same files in the same order."
            )
            self.say({"differ": text})
            self._end_for(text, EXIT_USAGE)

    def _miss(self) -> None:
        """Lose a process that has ended and did not come to the work that is shared now."""
        for number, num_shared in list(self._at_end.items()):
            if num_shared < self.num_shared:
                self._lose(number, _EARLY)

    def _lose(self, number: int, how: str) -> None:
        """Note that a process is gone, the first of which that is said."""
        if self.lost or (self.was_joined and not jax.distributed.is_initialized()):
            return  # in the second case, the processes have parted in peace
        self.say({"gone": number, "how": how}, but=number)
        self._end_for(
            f"process {number} {how}, and this process cannot go on without it.\n"
            f"  Look at the messages of process {number}, and run the same command again.",
            EXIT_PEERS,
        )

    def _end_for(self, why: str, exit_code: int) -> None:
        """End this process soon, unless it ends by itself or already ends for another reason."""
        if self.lost:
            return
        self.lost, self._exit_code = why, exit_code
        last = 0 if 0 in self._connections.others else _LEAD_LINGERS_SECONDS
        self._due = time.monotonic() + _OWN_END_SECONDS + last
        self._latest = time.monotonic() + _FINISH_SECONDS + last
        self.told.set()

    def _remark_if_due(self) -> None:
        if time.monotonic() < self._remark_at:
            return
        self._remark_at = float("inf")
        if not self.is_at_end and not self.lost:
            names = ", ".join(map(str, sorted(self._at_end)))
            _print(f"process {names} has ended its program, and waits there for this one and all others")

    def _end_if_due(self) -> None:
        if self.over or time.monotonic() < self._due:
            return
        if not self._said:
            self._said = True
            _print(f"error: {self.lost}")
        if not member.num_unfinished or time.monotonic() >= self._latest:
            os._exit(self._exit_code)


def _print(text: str) -> None:
    """Print on stderr, but never wait long: its pipe may be full, or its lock held by what hangs."""
    line = f"meshwright: {text}"
    printing = threading.Thread(target=lambda: print(line, file=sys.stderr, flush=True), daemon=True)
    printing.start()
    printing.join(_PRINT_SECONDS)
