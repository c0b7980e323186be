"""The message that says how the settings or programs of several processes differ, and on which processes."""

import collections
import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

from meshwright.errors import ranges

Lines = Mapping[str, str]
"""The text of a process: settings by dotted path, or the lines of a program by `line 1`, `line 2`, …."""
Groups = Mapping[int, Sequence[int]]
"""The processes whose texts are equal, by the first process of each group."""

_LONG = 2000
"""The length of the longest line that is sent in full. Of a longer line, such as a table of numbers, the
middle is sent as a digest."""
_SHOWN = 160
"""The most characters of a value in the message."""
_MOST_NAMES = 4
_NOTHING = "nothing"
_LINE = "line "
_NUMBERED = re.compile(r"%\w+(?:[:#]\d+)?|@\w+?_\d+\b")
"""Names in a program that have a number from the order of its lines."""
_ORDER = (
    "\n  The lines are the same in another order. Code may iterate over a `set` of strings, whose order\n"
    "  differs between processes: iterate over `sorted(...)` of it."
)


def lines_of(text: str) -> Lines:
    """Return the lines of a text, shortened, by `line 1`, `line 2` and so on."""
    return {f"{_LINE}{i}": shortened(line.strip()) for i, line in enumerate(text.splitlines(), 1)}


def shortened(line: str) -> str:
    """Return a line or, if it is long, its beginning, a digest and its end."""
    if len(line) <= _LONG:
        return line
    digest = hashlib.sha256(line.encode()).hexdigest()[:12]
    return f"{line[:_SHOWN]}… (sha256 {digest}) …{line[-_SHOWN:]}"


def describe_difference(
    about: str, lines: Mapping[int, Lines], groups: Groups, *, orders_differ: bool
) -> str:
    """Return a message with the first line or setting that differs, and its value on each process."""
    names = dict.fromkeys(itertools.chain.from_iterable(lines.values()))
    differing = [name for name in names if len({each.get(name) for each in lines.values()}) > 1]
    if differing:
        first = _by_process(
            {number: each.get(differing[0], _NOTHING) for number, each in lines.items()}, groups
        )
        found = f"{differing[0]}: {first}"
    elif len({tuple(each) for each in lines.values()}) > 1:
        orders = {number: ", ".join(each) for number, each in lines.items()}
        found = f"the order of the settings: {_by_process(orders, groups)}"
    else:
        found = "white space only"
    more = [name for name in differing[1:] if not name.startswith(_LINE)]  # one new line moves all others
    also = f"\n  and {len(more)} more: {_listed(more)}" if more else ""
    reordered = orders_differ and len({_unordered(each) for each in lines.values()}) == 1
    return (
        f"the processes of this run differ in {about}:\n  {found}{also}{_ORDER if reordered else ''}\n"
        "  All processes must run the same program: start them with the same code, settings and data."
    )


def _by_process(values: Mapping[int, str], groups: Groups) -> str:
    """Return the values with their processes: `0.01 on process 0, 0.02 on 1`."""
    start = _first_difference(list(values.values()))
    processes: dict[str, list[int]] = {}
    for number, value in values.items():
        processes.setdefault(_around(value, start), []).extend(groups[number])
    if all(len(each) == 1 for each in processes.values()):
        return ", ".join(
            f"{value} on {'' if i else 'process '}{numbers[0]}"
            for i, (value, numbers) in enumerate(processes.items())
        )
    return "; ".join(
        f"{value} on {'process' if len(numbers) == 1 else 'processes'} {ranges(numbers)}"
        for value, numbers in processes.items()
    )


def _first_difference(values: Sequence[str]) -> int:
    same = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*values, strict=False))
    return sum(1 for _ in same)


def _around(value: str, place: int) -> str:
    """Return the part of a value around an index in it, as much as the message shows."""
    if len(value) <= _SHOWN:
        return value
    start = max(0, min(place - _SHOWN // 3, len(value) - _SHOWN))
    shown = value[start : start + _SHOWN]
    return f"{'…' if start else ''}{shown}{'…' if start + _SHOWN < len(value) else ''}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (", …" if names[_MOST_NAMES:] else "")


def _unordered(lines: Lines) -> frozenset[tuple[str, int]]:
    """Return the lines as a set with counts, without the numbers that come from their order."""
    return frozenset(collections.Counter(_unnumbered(lines.items())).items())


def _unnumbered(items: Iterable[tuple[str, str]]) -> Iterable[str]:
    for name, text in items:
        path = re.sub(r"^line \d+$|\.\d+(?=\.|$)", "", name)
        yield f"{path}: {_NUMBERED.sub('%', text)}"
