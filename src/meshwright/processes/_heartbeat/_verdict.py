"""A table of where all processes of a run stand, and the sentence that follows from it."""

from collections import Counter
from collections.abc import Sequence

from meshwright.base._internal import aligned
from meshwright.errors import ranges
from meshwright.processes._heartbeat._look import GONE, LEFT, MUTE, STANDS, STOPPED, WAITS, WORKS, Seen

_HEADS = ("process", "state", "phase", "after step", "for", "where")
_MOST_ROWS = 16
_CHECKPOINTS = ("meshwright/checkpoints/", "meshwright/base/_storage/")


def verdict(seen: Sequence[Seen], *, width: int | None = None) -> str:
    """Return a table with what each process does, the unusual ones first, and the sentence that follows from
    it.
    """
    rows = [_HEADS]
    groups: dict[tuple[str, ...], list[Seen]] = {}
    for each in sorted(seen, key=lambda each: (_ORDER.index(each.state), each.process)):
        groups.setdefault(_cells(each), []).append(each)
    for (state, phase, step, where), found in list(groups.items())[:_MOST_ROWS]:
        rows.append((ranges([each.process for each in found]), state, phase, step, _longest(found), where))
    left_out = [f"and {len(groups) - _MOST_ROWS} rows more"] if len(groups) > _MOST_ROWS else []
    return "\n".join([*aligned(rows, right=(3, 4), width=width), *left_out, sentence(seen)])


def sentence(seen: Sequence[Seen]) -> str:
    """Return the sentence that follows from what each process does."""
    found = {state: [each for each in seen if each.state == state] for state in _ORDER}
    waiting = "; the others wait for it" if found[WAITS] else ""
    if gone := found[GONE]:
        return f"{_say(gone, 'is', 'are')} gone without a word. The log, and that of the system, may say why."
    if stopped := found[STOPPED]:
        let_go_on = f"To let it go on: {_let_go_on(stopped)}."
        return f"{_say(stopped, 'is', 'are')} stopped by a signal{waiting}. {let_go_on}"
    if mute := found[MUTE]:
        why = "the machine is not reached, or a call in C keeps Python's lock"
        return f"{_say(mute, 'does', 'do')} not answer: {why}{waiting}. It was last seen{_place_of(mute)}."
    if stands := found[STANDS]:
        return f"{_say(stands, 'stands', 'stand')}{_place_of(stands)}{waiting}.{_of_a_store(stands)}"
    if left := found[LEFT]:
        return f"{_say(left, 'has', 'have')} left the run, or not begun{waiting}."
    if works := found[WORKS]:
        return f"{_say(works, 'works', 'work')}{waiting}." if waiting else "All processes work."
    return _of_waiting(found[WAITS])


def _of_a_store(stands: Sequence[Seen]) -> str:
    """Return the sentence for a process that waits for the place of its checkpoints; "" for others."""
    places = [place for each in stands[:1] if each.entry for place in (each.entry.where, *each.entry.others)]
    is_store = bool(places) and all(place.startswith(_CHECKPOINTS) for place in places)
    return " The disk or the store of the checkpoints does not answer, or is slow." if is_store else ""


def _of_waiting(waiting: Sequence[Seen]) -> str:
    """Return the sentence for processes all of which wait."""
    if not (odd := _elsewhere(waiting)):
        where = _place_of(waiting)
        return f"All wait in the same place,{where}: a device or a collective operation does not end."
    steps = {each.entry.step or 0 for each in waiting if each.entry is not None}
    behind = f" Some are after step {min(steps)}, others after step {max(steps)}." if len(steps) > 1 else ""
    who = _say(odd, "waits", "wait").lower()
    return (
        f"All wait, but {who} elsewhere,{_place_of(odd)}. If it takes a branch "
        f"that the others do not take, or its data end earlier, they wait for each other for ever.{behind}"
    )


def blamed(seen: Sequence[Seen]) -> list[int]:
    """Return the numbers of the processes that the sentence names, for which others wait; none if all wait in
    one place.
    """
    waiting = [each for each in seen if each.state == WAITS]
    first = min((each.state for each in seen), key=_ORDER.index, default=WAITS)
    named = _elsewhere(waiting) if first == WAITS else [each for each in seen if each.state == first]
    return [each.process for each in named] if waiting else []


def _elsewhere(waiting: Sequence[Seen]) -> list[Seen]:
    """Return those of some processes that wait in another place than most."""
    places = Counter(_place(each) for each in waiting)
    return [each for each in waiting if _place(each) != places.most_common(1)[0][0]]


_ORDER = (GONE, STOPPED, MUTE, STANDS, LEFT, WORKS, WAITS)


def _cells(seen: Seen) -> tuple[str, str, str, str]:
    """Return the cells of a row that processes have in common: state, phase, step and place."""
    entry = seen.entry
    if entry is None:
        return seen.state, "", "", ""
    step = "" if entry.step is None else str(entry.step)
    return seen.state, entry.phase, step, "; ".join([entry.where, *entry.others])


def _longest(seen: Sequence[Seen]) -> str:
    """Return the longest time that one of some processes stood still, as text."""
    times = [each.entry.still_seconds for each in seen if each.entry is not None]
    return f"{max(times):.0f} s" if times else ""


def _place(seen: Seen) -> tuple[str, str, int | None]:
    entry = seen.entry
    return ("", "", None) if entry is None else (entry.phase, entry.where, entry.step)


def _say(seen: Sequence[Seen], one: str, many: str) -> str:
    """Return the beginning of a sentence about some processes, with the verb for one of them or for many."""
    numbers = ranges([each.process for each in seen])
    return f"Process {numbers} {one}" if len(seen) == 1 else f"Processes {numbers} {many}"


def _place_of(seen: Sequence[Seen]) -> str:
    """Return in words where the first of some processes is."""
    entry = seen[0].entry
    if entry is None:
        return ""
    where = f", at {entry.where}" if entry.where else ""
    others = f" ({'; '.join(entry.others)})" if entry.others else ""
    return f" in the phase {entry.phase}{where}{others}"


def _let_go_on(seen: Sequence[Seen]) -> str:
    return "; ".join(
        f"`kill -CONT {each.entry.pid}` on {each.entry.host}" for each in seen[:4] if each.entry is not None
    )
