"""Regular expressions for whole names, in lists of which the first that matches decides."""

import re
from collections.abc import Callable, Iterable, Sequence

from meshwright.errors import UsageError


class OptionalPattern(str):
    """A pattern that need not match anything; see `optional`."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return what makes it."""
        return f"optional({str(self)!r})"


def optional(pattern: str) -> str:
    """Return a pattern that decides nothing without an error, where no name is left for it.

    For tables that serve several models or checkpoints, where a rule may find nothing. Other patterns that
    decide nothing are taken for typing errors.
    """
    return OptionalPattern(pattern)


def compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern ready for use.

    Raises:
      UsageError: It is not a regular expression.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"{pattern!r} is not a regular expression: {error}.") from None


def first_matches(
    patterns: Sequence[str], names: Iterable[str], also: Callable[[str], str] = str
) -> dict[str, tuple[int, re.Match[str]]]:
    """Return for each name that a pattern matches wholly the number of the first such pattern, and the match.

    Where a name is not matched itself, what `also` makes of it is.

    Raises:
      UsageError: A pattern that is not `optional` decides nothing: it matches no name, or only such as
        earlier ones match.
    """
    rules, decided = [compiled(pattern) for pattern in patterns], {}
    shadowed: dict[int, int] = {}
    for name in names:
        other = also(name)
        matches = [
            (number, match)
            for number, rule in enumerate(rules)
            if (match := rule.fullmatch(name) or (other != name and rule.fullmatch(other)))
        ]
        if matches:
            decided[name] = matches[0]
            shadowed |= {number: matches[0][0] for number, _ in matches[1:]}
    must_decide = {
        number for number, pattern in enumerate(patterns) if not isinstance(pattern, OptionalPattern)
    }
    idle = must_decide - {number for number, _ in decided.values()}
    if idle:
        raise UsageError("\n".join(_why_idle(patterns, number, shadowed) for number in sorted(idle)))
    return decided


def _why_idle(patterns: Sequence[str], number: int, shadowed: dict[int, int]) -> str:
    rule = f"rule {number + 1}, {patterns[number]!r},"
    if number not in shadowed:
        return f"{rule} matches no name; a pattern must match whole names."
    first = shadowed[number]
    return f"{rule} decides nothing, as rule {first + 1}, {patterns[first]!r}, matches the same names first."
