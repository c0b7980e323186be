"""Looks at a board: what each process does, and whether one has stood still for too long, by the reader's own
clock.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from meshwright.base._internal import documented
from meshwright.processes._heartbeat._entry import Entry, read_entries
from meshwright.processes._proc import birth_of, here, state_of

GONE, LEFT, STOPPED, MUTE = "gone", "has left", "stopped by a signal", "does not answer"
STANDS, WAITS, WORKS = "stands", "waits", "works"
_BEATS = 3
"""The time between two looks, in beats."""
_MUTE_SECONDS = 3.0
"""A process that has not written for this long, after two looks, cannot: on a machine with much to do, a
process may get no time for a second or two."""


@documented
@dataclass(frozen=True)
class Seen:
    """A process as somebody saw it."""

    process: int
    """The number of the process."""
    state: str
    """What it does: `gone`, `has left`, `stopped by a signal`, `does not answer`, `stands` (in code that
    waits for no other process), `waits`, or `works`."""
    entry: Entry | None
    """What it told last; None if it tells nothing."""


def look(directory: Path) -> list[Seen]:
    """Return what each process of a run does. It reads the board twice, some seconds apart, and again while
    one of them seems not to answer.
    """
    before = read_entries(directory)
    if not before:
        return []
    beat = max(entry.beat_seconds for entry in before.values())
    time.sleep(_BEATS * beat)
    seen, over = compared(before, read_entries(directory)), time.monotonic() + _MUTE_SECONDS
    while any(each.state == MUTE for each in seen) and time.monotonic() < over:
        time.sleep(beat)
        seen = compared(before, read_entries(directory))
    return seen


def compared(before: Mapping[int, Entry], after: Mapping[int, Entry]) -> list[Seen]:
    """Return what each process does, from two readings of the board."""
    known = {**before, **after}
    total = next(iter(known.values())).num_processes
    return [_seen(number, before.get(number), after.get(number)) for number in range(total)]


def _seen(number: int, before: Entry | None, after: Entry | None) -> Seen:
    if after is None:
        return Seen(number, LEFT, None)
    state = _state_on_this_machine(after)
    if state is None:
        is_mute = before is not None and before.beat == after.beat
        has_moved = before is None or before.turns != after.turns
        state = MUTE if is_mute else WORKS if has_moved else WAITS if after.is_waiting else STANDS
    return Seen(number, state, after)


def _state_on_this_machine(entry: Entry) -> str | None:
    """Return what Linux says of a process; None if it runs, or is on another machine."""
    host, _, _, namespace = here()
    if not entry.born or (host, namespace) != (entry.host, entry.namespace):
        return None
    if birth_of(entry.pid) != entry.born or state_of(entry.pid) in ("Z", "X"):
        return GONE
    return STOPPED if state_of(entry.pid) in ("T", "t") else None


class LookOut:
    """Notices that a process of a run stands still. It goes by the clock of whoever holds it."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[tuple[int, str], float]] = {}
        self._told: dict[int, tuple[int, str]] = {}

    def late(self, entries: Mapping[int, Entry], now: float) -> Mapping[int, Entry]:
        """Return the processes that stand still for longer than is usual, only once for each hang."""
        late = {}
        for number, entry in entries.items():
            turn = (entry.turns, entry.born)
            if self._since.get(number, (None, 0.0))[0] != turn:
                self._since[number] = turn, now
            limit, stood = entry.limit_seconds, now - self._since[number][1]
            if limit is None or stood <= limit or self._told.get(number) == turn:
                continue
            if _state_on_this_machine(entry) != GONE:  # else it is of an attempt before
                late[number] = entry
        if late:
            self._told = {number: (entry.turns, entry.born) for number, entry in entries.items()}
        return late
