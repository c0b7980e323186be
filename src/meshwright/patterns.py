"""Patterns for the names of leaves, and tables of them in which each rule must decide something.

A pattern is a regular expression that matches a whole name or its last components. `q|k|v` matches the
leaves called q, k or v, and not `freq`; `decoder/.*/q` matches those below `decoder`. `^` stands for the
beginning of the whole name: `^params/q` does not match `average/params/q`, and `^(?!params/).*` matches all
that is no parameter. (Without `^` the last components of any name match that.) This holds wherever leaves are
chosen by name: in sharding rules, optimizers, dtypes and checkpoints.

In a table the first pattern that matches decides. A rule that decides nothing is taken for a typing error.
"""

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import jax

from meshwright.errors import UsageError, listed, nearest

V = TypeVar("V")
"""The type of a table's values."""
Found = re.Match[str]
"""Where a pattern matched a name."""
Names = tuple[str, ...]
"""The names of one leaf; there is more than one where a format of checkpoints spells it otherwise."""

EVERYTHING = ".*"
"""As the last rule of a table it is for all others, of which there may be none."""

_MAX_SUGGESTIONS = 10  # each compares one pattern with all names


class OptionalPattern(str):
    """A pattern that need not decide anything; see `optional`."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return what makes it."""
        return f"optional({str(self)!r})"


def optional(pattern: str) -> str:
    """Return a pattern that may decide nothing: `[(mw.optional("encoder/.*"), "none")]`.

    It is for tables that serve several models or checkpoints. Any other pattern that decides nothing is an
    error, as it is probably a typing error.
    """
    return OptionalPattern(pattern)


@functools.cache  # Python itself keeps 512 patterns, and there may be a rule for each of thousands of arrays
def compiled(pattern: str) -> Callable[[str], Found | None]:
    """Return the function from a name to a pattern's match with all of it, or with its last components.

    The match of the most components stands: the group of `(.*)/q` is all that is above the last component.

    Raises:
      re.error: `pattern` is not a regular expression.
    """
    alone = re.compile(pattern)
    flags = re.match(r"(\(\?[aiLmsux]+\))*", pattern)
    start = flags.end() if flags else 0  # Python wants flags at the very beginning
    below_any = re.compile(rf"{pattern[:start]}(?s:.*/)?(?:{pattern[start:]})")

    def matched(name: str) -> Found | None:
        if not below_any.fullmatch(name):  # most do not, and this is four times as fast
            return None
        starts = [0, *(i + 1 for i, letter in enumerate(name) if letter == "/")]
        return next(found for start in starts if (found := alone.fullmatch(name, start)))

    return matched


@jax.tree_util.register_static  # so that the state of an optimizer can show the rules that it goes by
@dataclass(frozen=True)
class Table:
    """The patterns of some rules, of which the first that matches decides.

    Raises:
      UsageError: A pattern is not a regular expression.
    """

    name: str
    """What errors call it: the name of the argument, field or function that was given the rules."""
    patterns: tuple[str, ...]

    def __post_init__(self) -> None:
        for pattern in self.patterns:
            try:
                compiled(pattern)
            except re.error as error:
                message = f"{self.name}: {pattern!r} is not a regular expression: {error}."
                raise UsageError(message) from None

    @classmethod
    def of(cls, name: str, rules: Iterable[Sequence[Any]]) -> Self:
        """Return the table of rules that are pairs of a pattern and a value."""
        return cls(name, tuple(rule[0] for rule in rules))

    def first(self, *names: str) -> tuple[int, Found] | None:
        """Return the number of the first rule that matches a leaf by one of its names, and the match."""
        for number, pattern in enumerate(self.patterns):
            for name in names:
                if found := compiled(pattern)(name):
                    return number, found
        return None

    def decisions(
        self, names: Iterable[str], also: Callable[[str], str] = str
    ) -> dict[str, tuple[int, Found]]:
        """Return for each leaf that is matched, by its name, the number of the first rule and the match.

        Args:
          names: The names of the leaves.
          also: Gives another name by which a pattern may call a leaf.
        """
        found = {name: self.first(name, also(name)) for name in names}
        return {name: first for name, first in found.items() if first is not None}


def value_of(rules: Iterable[tuple[str, V]], name: str, default: V) -> V:
    """Return the value of the first rule whose pattern matches a name."""
    return next((value for pattern, value in rules if compiled(pattern)(name)), default)


def judge(tables: Mapping[Table, Iterable[str]], also: Callable[[str], str] = str) -> None:
    """Check that each rule decides something.

    An `optional` pattern need not, nor a last `.*`, which is for all others.

    Args:
      tables: Each with the names of all the leaves that it is for. (Among some of them, a rule for others
        seems to decide nothing.)
      also: As of `Table.decisions`.

    Raises:
      UsageError: Listing all rules that decide nothing, with the nearest names.
    """
    leaves = {table: [(name, also(name)) for name in names] for table, names in tables.items()}
    idle = [(table, number) for table in tables for number in _idle(table, leaves[table])]
    if not idle:
        return
    lines = [
        _why(table, number, leaves[table], suggest=i < _MAX_SUGGESTIONS)
        for i, (table, number) in enumerate(idle)
    ]
    table, number = idle[0]
    hint = (
        "  A pattern matches a whole name or its last components. Mend it, or leave it out; where it need "
        f"not decide anything, say mw.optional({table.patterns[number]!r})."
    )
    raise UsageError("\n".join([*lines, hint]))


def _idle(table: Table, leaves: Iterable[Names]) -> Iterator[int]:
    """Yield the numbers of the rules that decide nothing and should."""
    used = {found[0] for names in leaves if (found := table.first(*names))}
    for number, pattern in enumerate(table.patterns):
        is_rest = pattern == EVERYTHING and number == len(table.patterns) - 1
        if not (number in used or is_rest or isinstance(pattern, OptionalPattern)):
            yield number


def _why(table: Table, number: int, leaves: Collection[Names], suggest: bool) -> str:
    """Return the line of an error about a rule that decides nothing."""
    pattern = table.patterns[number]
    rule = f"rule {number + 1}, {pattern!r}," if len(table.patterns) > 1 else repr(pattern)
    matches = compiled(pattern)
    firsts = [table.first(*names) for names in leaves if any(map(matches, names))]
    if takers := sorted({first[0] + 1 for first in firsts if first}):
        earlier = f"rule {takers[0]}" if len(takers) == 1 else f"rules {', '.join(map(str, takers))}"
        return f"{table.name}: {rule} decides nothing: it matches only leaves that {earlier} already took."
    every = list(dict.fromkeys(name for names in leaves for name in names))
    return f"{table.name}: {rule} matches no name{_suggestion(pattern, every) if suggest else '.'}"


def _suggestion(pattern: str, names: Sequence[str]) -> str:
    """Return the end of a sentence with the name that was probably meant, or some of those that there are."""
    wanted = pattern.split("/")
    places = [i for i, key in enumerate(wanted) if re.search(r"\w", key)]  # a `.*` is like anything
    parts: dict[str, str] = {}
    for name in names:
        keys = name.split("/")
        for start in range(max(len(keys) - len(wanted), 0) + 1):
            parts.setdefault("/".join(keys[start + i] for i in places if start + i < len(keys)), name)
    close = nearest("/".join(wanted[i] for i in places), parts) if places else None
    if close is not None:
        return f"; the nearest is {parts[close]}."
    return f"; there are {listed(names)}." if names else "; there are none."
