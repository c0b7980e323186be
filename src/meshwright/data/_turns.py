"""Whose turn it is: a sequence of sources in which each has its share at every prefix, to within one.

R. Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980): of the sources that are behind
their shares by 1/(2k - 2) or more, take the one whose deadline comes first, at which it would be behind by
1 - 1/(2k - 2). Then none is ever ahead or behind by more than that. It also holds for shares that change, if
the changes are known. All is computed in whole numbers, so that it is exact after any number of turns.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

_UNIT = 1 << 40
"""The sum of all shares."""


class Shares(NamedTuple):
    """Shares from a turn on."""

    start: int
    """The number of the first turn."""
    by_source: tuple[int, ...]
    """Share of each source; their sum is 2**40."""


def shares_of(start: int, weights: Mapping[str, float], names: Sequence[str]) -> Shares:
    """Return shares, from positive numbers of any sum, as whole numbers."""
    total = sum(Fraction(weights[name]) for name in names)
    exact = [Fraction(weights[name]) * _UNIT / total for name in names]
    whole = [int(x) for x in exact]
    # What rounding down has left goes to those that have lost most.
    order = sorted(range(len(names)), key=lambda i: (whole[i] - exact[i], i))
    for i in order[: _UNIT - sum(whole)]:
        whole[i] += 1
    return Shares(start, tuple(whole))


class Turns:
    """The turns from a number on."""

    def __init__(self, shares: Sequence[Shares], start: int = 0, counts: Sequence[int] | None = None):
        self._shares, self.start = list(shares), start
        self.counts = list(counts) if counts is not None else [0] * len(shares[0].by_source)
        """How many turns each source had."""
        self._owed = [self._total(i, start) - _UNIT * count for i, count in enumerate(self.counts)]
        self._bound = _UNIT // max(1, 2 * len(self.counts) - 2)

    def next(self) -> int:
        """Return the source whose turn it is, and move on."""
        part = max((shares for shares in self._shares if shares.start <= self.start), key=lambda shares: shares.start)
        self.start += 1
        self._owed = [owed + share for owed, share in zip(self._owed, part.by_source, strict=True)]
        behind = [i for i, owed in enumerate(self._owed) if owed >= self._bound]
        chosen = behind[0] if len(behind) == 1 else min(behind, key=lambda i: (self._deadline(i), i))
        self._owed[chosen] -= _UNIT
        self.counts[chosen] += 1
        return chosen

    def _deadline(self, i: int) -> float:
        """Return the number of turns after which source `i` would be behind by 1 - 1/(2k - 2)."""
        remaining, begin = _UNIT - self._bound - self._owed[i], self.start
        if remaining <= 0:
            return begin
        for number, part in enumerate(self._shares):
            end = self._shares[number + 1].start if number + 1 < len(self._shares) else None
            if end is not None and end <= begin:
                continue
            share = part.by_source[i]
            if share and (end is None or remaining <= share * (end - begin)):
                return begin + -(-remaining // share)
            remaining, begin = remaining - share * ((end or begin) - begin), end or begin
        return float("inf")

    def _total(self, i: int, start: int) -> int:
        """Return the sum of the shares of source `i` before a turn."""
        ends = [*(shares.start for shares in self._shares[1:]), start]
        return sum(
            part.by_source[i] * max(0, min(end, start) - part.start)
            for part, end in zip(self._shares, ends, strict=True)
        )
