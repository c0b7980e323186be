"""Patterns for the names of leaves, and tables of rules in which each rule must decide something.

A pattern is a regular expression that matches a whole name or its last components. `q|k|v` matches the
leaves called q, k or v, but not `freq`; `decoder/.*/q` matches those below `decoder`. `^` is the beginning
of the whole name: `^params/q` does not match `average/params/q`, and `^(?!params/).*` matches everything
that is not a parameter. (Without the `^`, that pattern would match the last components of any name.) The
same holds wherever leaves are chosen by name: in sharding rules, optimizers, dtypes and checkpoints.

In a table, the first pattern that matches a leaf decides. A rule that decides for no leaf is an error, as it
is probably mistyped.
"""

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import jax

from meshwright.base._docstrings import documented
from meshwright.errors import UsageError, listed, nearest

V = TypeVar("V")
"""The type of a table's values."""
Match = re.Match[str]
"""The match of a pattern with a name."""
Names = tuple[str, ...]
"""The names of one leaf. It has more than one if a checkpoint's format spells it differently."""

EVERYTHING = ".*"
"""The pattern for all remaining leaves. As the last rule of a table it may decide nothing."""

# Each suggestion compares a pattern with all names.
_MAX_SUGGESTIONS = 10


class OptionalPattern(str):
    """A pattern that may decide nothing; see `optional`."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the call that makes the pattern."""
        return f"optional({str(self)!r})"


def optional(pattern: str) -> str:
    """Return a pattern that may match nothing, for rules that serve several models or checkpoints.

    Any other pattern that decides nothing is an error, as it is probably mistyped.

    Args:
      pattern: A regular expression for names of leaves.

    Example:
      >>> rules = [(mw.parallel.optional("encoder/.*"), optax.sgd(0.1)), (".*", optax.adam(1e-3))]
      >>> optimizer = mw.training.by_path(rules)  # for models with and without an encoder
    """
    return OptionalPattern(pattern)


# Python caches only 512 patterns, and there may be thousands of arrays with a rule each.
@functools.cache
def compiled(pattern: str) -> Callable[[str], Match | None]:
    """Return a function that matches a pattern with a name, or with the name's last components.

    Of several matches it returns the one with most components: the group in `(.*)/q` contains everything
    above the last component.

    Example:
      >>> mw.base._internal.compiled("(.*)/q")("decoder/0/q")[1]
      'decoder/0'
    """
    alone = re.compile(pattern)
    flags = re.match(r"(\(\?[aiLmsux]+\))*", pattern)
    # Python requires flags at the very beginning.
    start = flags.end() if flags else 0
    below_any = re.compile(rf"{pattern[:start]}(?s:.*/)?(?:{pattern[start:]})")

    def matched(name: str) -> Match | None:
        # Most names do not match, and this check is four times as fast as the search below.
        if not below_any.fullmatch(name):
            return None
        starts = [0, *(i + 1 for i, letter in enumerate(name) if letter == "/")]
        return next(match for start in starts if (match := alone.fullmatch(name, start)))

    return matched


@documented
# Static, so that the state of an optimizer can contain its rules.
@jax.tree_util.register_static
@dataclass(frozen=True)
class Table:
    """The patterns of a list of rules. The first one that matches a leaf decides."""

    name: str
    """Name of the table in errors: the argument, field or function that the rules were given to."""
    patterns: tuple[str, ...]
    """The patterns, in the order of the rules."""

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

    def first(self, *names: str) -> tuple[int, Match] | None:
        """Return the index of the first rule that matches a leaf, and the match; None if none does."""
        for number, pattern in enumerate(self.patterns):
            for name in names:
                if match := compiled(pattern)(name):
                    return number, match
        return None

    def decisions(
        self, names: Iterable[str], also: Callable[[str], str] = str
    ) -> dict[str, tuple[int, Match]]:
        """Return, by name, the first rule and its match for each leaf that a rule matches."""
        matches = {name: self.first(name, also(name)) for name in names}
        return {name: first for name, first in matches.items() if first is not None}


def value_of(rules: Iterable[tuple[str, V]], name: str, default: V) -> V:
    """Return the value of the first rule whose pattern matches a name."""
    return next((value for pattern, value in rules if compiled(pattern)(name)), default)


def judge(tables: Mapping[Table, Iterable[str]], also: Callable[[str], str] = str) -> None:
    """Check that each rule decides for some leaf. An `optional` pattern or a last `.*` need not."""
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
        "  A pattern matches a whole name or its last components. Correct or remove it; if it may match "
        f"nothing, write mw.parallel.optional({table.patterns[number]!r})."
    )
    raise UsageError("\n".join([*lines, hint]))


def _idle(table: Table, leaves: Iterable[Names]) -> Iterator[int]:
    """Yield the indices of the rules that decide nothing but should."""
    used = {match[0] for names in leaves if (match := table.first(*names))}
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
    """Return the end of a sentence with the name that was probably meant, or with some existing names."""
    pattern_keys = pattern.split("/")
    places = [i for i, key in enumerate(pattern_keys) if re.search(r"\w", key)]  # `.*` resembles everything
    parts: dict[str, str] = {}
    for name in names:
        keys = name.split("/")
        for start in range(max(len(keys) - len(pattern_keys), 0) + 1):
            parts.setdefault("/".join(keys[start + i] for i in places if start + i < len(keys)), name)
    close = nearest("/".join(pattern_keys[i] for i in places), parts) if places else None
    if close is not None:
        return f"; the nearest is {parts[close]}."
    return f"; there are {listed(names)}." if names else "; there are none."
