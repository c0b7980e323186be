"""A table of what all processes of a run do, and the sentence that follows from it."""

from collections import Counter
from collections.abc import Sequence

from meshwright.base._internal import aligned
from meshwright.errors import ranges
from meshwright.processes._heartbeat import (
    ENDED,
    NOT_IN_RUN,
    STANDS,
    STOPPED,
    UNRESPONSIVE,
    WAITS,
    WORKS,
    ProcessStatus,
)

_HEADS = ("process", "state", "phase", "after step", "for", "where")
_MOST_ROWS = 16
_CHECKPOINTS = ("meshwright/checkpoints/", "meshwright/base/_storage/")


def verdict(observed: Sequence[ProcessStatus], *, width: int | None = None) -> str:
    """Return a table of what each process does, the unusual ones first, and the sentence that follows."""
    rows = [_HEADS]
    groups: dict[tuple[str, ...], list[ProcessStatus]] = {}
    for status in sorted(observed, key=lambda status: (_ORDER.index(status.state), status.process)):
        groups.setdefault(_cells(status), []).append(status)
    for (state, phase, step, where), group in list(groups.items())[:_MOST_ROWS]:
        seconds = [status.entry.still_seconds for status in group if status.entry is not None]
        still = f"{max(seconds):.0f} s" if seconds else ""
        rows.append((ranges([status.process for status in group]), state, phase, step, still, where))
    left_out = [f"and {len(groups) - _MOST_ROWS} rows more"] if len(groups) > _MOST_ROWS else []
    return "\n".join([*aligned(rows, right=(3, 4), width=width), *left_out, sentence(observed)])


def sentence(observed: Sequence[ProcessStatus]) -> str:
    """Return the sentence that follows from what each process does."""
    by_state = {state: [status for status in observed if status.state == state] for state in _ORDER}
    waiting = "; the others wait for it" if by_state[WAITS] else ""
    if ended := by_state[ENDED]:
        return (
            f"{_say(ended, 'is', 'are')} gone without a word. The log, and that of the system, may say why."
        )
    if stopped := by_state[STOPPED]:
        entries = [status.entry for status in stopped[:4] if status.entry is not None]
        remedies = "; ".join(f"`kill -CONT {entry.pid}` on {entry.host}" for entry in entries)
        return f"{_say(stopped, 'is', 'are')} stopped by a signal{waiting}. To let it go on: {remedies}."
    if mute := by_state[UNRESPONSIVE]:
        why = "the machine is not reached, or a call in C keeps Python's lock"
        return f"{_say(mute, 'does', 'do')} not answer: {why}{waiting}. It was last seen{_place_of(mute)}."
    if stands := by_state[STANDS]:
        return f"{_say(stands, 'stands', 'stand')}{_place_of(stands)}{waiting}.{_of_a_store(stands)}"
    if absent := by_state[NOT_IN_RUN]:
        return f"{_say(absent, 'has', 'have')} left the run, or not begun{waiting}."
    if works := by_state[WORKS]:
        return f"{_say(works, 'works', 'work')}{waiting}." if waiting else "All processes work."
    return _of_waiting(by_state[WAITS])


def _of_a_store(stands: Sequence[ProcessStatus]) -> str:
    """Return the sentence for a process that waits for the place of its checkpoints; "" for others."""
    places = [
        line for status in stands[:1] if status.entry for line in (status.entry.where, *status.entry.others)
    ]
    is_store = bool(places) and all(line.startswith(_CHECKPOINTS) for line in places)
    return " The disk or the store of the checkpoints does not answer, or is slow." if is_store else ""


def _of_waiting(waiting: Sequence[ProcessStatus]) -> str:
    """Return the sentence for processes all of which wait."""
    if not (odd := _elsewhere(waiting)):
        where = _place_of(waiting)
        return f"All wait in the same place,{where}: a device or a collective operation does not end."
    steps = {status.entry.step or 0 for status in waiting if status.entry is not None}
    behind = f" Some are after step {min(steps)}, others after step {max(steps)}." if len(steps) > 1 else ""
    who = _say(odd, "waits", "wait").lower()
    return (
        f"All wait, but {who} elsewhere,{_place_of(odd)}. If it takes a branch "
        f"that the others do not take, or its data end earlier, they wait for each other for ever.{behind}"
    )


def blamed(observed: Sequence[ProcessStatus]) -> list[int]:
    """Return the processes that the sentence names and others wait for; none if all wait in one place."""
    waiting = [status for status in observed if status.state == WAITS]
    first = min((status.state for status in observed), key=_ORDER.index, default=WAITS)
    named = (
        _elsewhere(waiting) if first == WAITS else [status for status in observed if status.state == first]
    )
    return [status.process for status in named] if waiting else []


def _elsewhere(waiting: Sequence[ProcessStatus]) -> list[ProcessStatus]:
    """Return the processes that wait at another line than most."""
    places = Counter(_position(status) for status in waiting)
    return [status for status in waiting if _position(status) != places.most_common(1)[0][0]]


_ORDER = (ENDED, STOPPED, UNRESPONSIVE, STANDS, NOT_IN_RUN, WORKS, WAITS)


def _cells(observed: ProcessStatus) -> tuple[str, str, str, str]:
    """Return the cells of a row that processes share: state, phase, step and lines of source."""
    entry = observed.entry
    if entry is None:
        return observed.state, "", "", ""
    step = "" if entry.step is None else str(entry.step)
    return observed.state, entry.phase, step, "; ".join([entry.where, *entry.others])


def _position(observed: ProcessStatus) -> tuple[str, str, int | None]:
    entry = observed.entry
    return ("", "", None) if entry is None else (entry.phase, entry.where, entry.step)


def _say(observed: Sequence[ProcessStatus], singular: str, many: str) -> str:
    """Return the beginning of a sentence about some processes, with the verb for one of them or for many."""
    numbers = ranges([status.process for status in observed])
    return f"Process {numbers} {singular}" if len(observed) == 1 else f"Processes {numbers} {many}"


def _place_of(observed: Sequence[ProcessStatus]) -> str:
    """Return the phase and line of the first process, in words."""
    entry = observed[0].entry
    if entry is None:
        return ""
    where = f", at {entry.where}" if entry.where else ""
    others = f" ({'; '.join(entry.others)})" if entry.others else ""
    return f" in the phase {entry.phase}{where}{others}"
