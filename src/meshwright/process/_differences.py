"""In what the words of several processes differ, and whose they are, as one sentence."""

import collections
import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

from meshwright.process._sockets import ranges

Lines = Mapping[str, str]
"""The message of a process: settings by their paths, or the lines of a program by their numbers."""
Groups = Mapping[int, Sequence[int]]
"""By the first process of those that say the same, all of them."""

_LONG = 2000
"""The longest line sent whole; the middle of a longer one, a table of numbers, is sent as a digest."""
_SHOWN = 160
_MOST_NAMES = 4
_NOTHING = "nothing"
_LINE = "line "
_SERIAL = re.compile(r"%\w+(?:[:#]\d+)?|@\w+?_\d+\b")
"""Names in a program that are numbered in the order of its lines."""
_ORDER = (
    "\n  All say the same in another order, as code does that iterates over a `set` of strings: its order\n"
    "  is another in each process. Iterate over `sorted(...)` of it."
)


def lines_of(text: str) -> Lines:
    """Return the lines of a text by their numbers, no line being longer than can be shown."""
    return {f"{_LINE}{i}": shortened(line.strip()) for i, line in enumerate(text.splitlines(), 1)}


def shortened(line: str) -> str:
    """Return a line as it is or, if it is long, its beginning, a digest and its end."""
    if len(line) <= _LONG:
        return line
    digest = hashlib.sha256(line.encode()).hexdigest()[:12]
    return f"{line[:_SHOWN]}… (sha256 {digest}) …{line[-_SHOWN:]}"


def difference(about: str, lines: Mapping[int, Lines], groups: Groups, *, orders_differ: bool) -> str:
    """Return the first name at which the processes differ, and what each of them says there.

    Args:
      about: what is compared, as the object of a sentence.
      lines: what the first process of each of `groups` says.
      orders_differ: sets of strings have other orders in some processes.
    """
    names = dict.fromkeys(itertools.chain.from_iterable(lines.values()))
    differing = [name for name in names if len({each.get(name) for each in lines.values()}) > 1]
    first = {number: each.get(differing[0], _NOTHING) for number, each in lines.items()}
    more = [name for name in differing[1:] if not name.startswith(_LINE)]  # one line draws others after it
    also = f"\n  and {len(more)} more: {_listed(more)}" if more else ""
    reordered = orders_differ and len({_unordered(each) for each in lines.values()}) == 1
    return (
        f"the processes of this run differ in {about}:\n  {differing[0]}: {_whose(first, groups)}{also}"
        f"{_ORDER if reordered else ''}\n"
        "  All processes must run one program: start them with the same code, settings and data."
    )


def _whose(values: Mapping[int, str], groups: Groups) -> str:
    """Write who says what: `0.01 on process 0, 0.02 on 1`."""
    start = _first_difference(list(values.values()))
    holders: dict[str, list[int]] = {}
    for number, value in values.items():
        holders.setdefault(_around(value, start), []).extend(groups[number])
    if all(len(each) == 1 for each in holders.values()):
        return ", ".join(
            f"{value} on {'' if i else 'process '}{numbers[0]}"
            for i, (value, numbers) in enumerate(holders.items())
        )
    return "; ".join(
        f"{value} on {'process' if len(numbers) == 1 else 'processes'} {ranges(numbers)}"
        for value, numbers in holders.items()
    )


def _first_difference(values: Sequence[str]) -> int:
    same = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*values, strict=False))
    return sum(1 for _ in same)


def _around(value: str, place: int) -> str:
    """Return so much of a value around a place in it as can be read."""
    if len(value) <= _SHOWN:
        return value
    start = max(0, min(place - _SHOWN // 3, len(value) - _SHOWN))
    shown = value[start : start + _SHOWN]
    return f"{'…' if start else ''}{shown}{'…' if start + _SHOWN < len(value) else ''}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (", …" if names[_MOST_NAMES:] else "")


def _unordered(lines: Lines) -> frozenset[tuple[str, int]]:
    """Return what is said however it is ordered: without the numbers that come from the order alone."""
    return frozenset(collections.Counter(_unnumbered(lines.items())).items())


def _unnumbered(items: Iterable[tuple[str, str]]) -> Iterable[str]:
    for name, said in items:
        place = re.sub(r"^line \d+$|\.\d+(?=\.|$)", "", name)
        yield f"{place}: {_SERIAL.sub('%', said)}"
