"""Several sets of examples, mixed by shares.

`Turns` decides which set gives the next example, so that each set has its share at every prefix, to within
one. R. Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980): of the sources that are
behind their shares by 1/(2k - 2) or more, take the one whose deadline comes first, at which it would be
behind by 1 - 1/(2k - 2). Then none is ever ahead or behind by more than that. It also holds for shares that
change, if the changes are known. All is computed in whole numbers, so that it is exact after any number of
turns.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import numpy as np

from meshwright.base._internal import PyTree
from meshwright.data._counted import Counted, CountedExamples, CountedRows
from meshwright.data._kinds import is_indexed
from meshwright.data._mapped import seeded
from meshwright.data._order import Position
from meshwright.data._source import Part, PartSource, as_source
from meshwright.data._stretches import Stretch
from meshwright.data._text import Text
from meshwright.errors import ExamplesError, UsageError

# The sum of all shares.
_UNIT = 1 << 40


class Shares(NamedTuple):
    """Shares from a turn on."""

    start: int
    """The number of the first turn."""
    by_source: tuple[int, ...]
    """Share of each source; their sum is 2**40."""


def shares_of(start: int, weights: Mapping[str, float], names: Sequence[str]) -> Shares:
    """Return shares, from positive numbers of any sum, as whole numbers."""
    total = sum(Fraction(weights[name]) for name in names)
    # Whole numbers stay exact after any number of turns; floats would drift.
    exact = [Fraction(weights[name]) * _UNIT / total for name in names]
    whole = [int(x) for x in exact]
    # The units that rounding down has left go to the sources that have lost most.
    order = sorted(range(len(names)), key=lambda i: (whole[i] - exact[i], i))
    for i in order[: _UNIT - sum(whole)]:
        whole[i] += 1
    return Shares(start, tuple(whole))


class Turns:
    """The turns from a number on."""

    def __init__(self, shares: Sequence[Shares], start: int = 0, counts: Sequence[int] | None = None):
        self._shares, self.start = list(shares), start
        self.counts = list(counts) if counts is not None else [0] * len(shares[0].by_source)
        """The number of turns that each source had."""
        self._owed = [self._total(i, start) - _UNIT * count for i, count in enumerate(self.counts)]
        self._bound = _UNIT // max(1, 2 * len(self.counts) - 2)

    def next(self) -> int:
        """Return the source whose turn it is, and move on."""
        part = max(
            (shares for shares in self._shares if shares.start <= self.start), key=lambda shares: shares.start
        )
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


@dataclass(frozen=True)
class Mixture:
    """Examples of several sets, as `mixture` returns them."""

    examples: Mapping[str, Any] = field(repr=False)
    """The sets of examples, by name."""
    shares: Mapping[int, Mapping[str, float]]
    """The share of each set, by name, from a number of examples on."""

    def of_epoch(self, epoch: int) -> "Mixture":
        """Return the same mixture, with the order that texts have from an epoch on."""
        sets = {name: x.of_epoch(epoch) if isinstance(x, Text) else x for name, x in self.examples.items()}
        return replace(self, examples=sets)


def mixture(
    examples: Mapping[str, Any],
    shares: Mapping[str, float],
    *,
    changes: Mapping[int, Mapping[str, float]] | None = None,
) -> Mixture:
    """Return a mixture of several sets of examples.

    Which set an example is taken from depends only on the shares and the example's number in the mixture. At
    each moment each set has given its share of all examples so far, to less than one example: with
    `{"a": 0.7, "b": 0.3}`, of 1,000 examples 700 are of `a`, or 699 or 701. Each set has its own order, and
    begins a new epoch when it is used up. With `epochs=` a mixture ends before the first set would be read
    once more.

    Args:
      examples: Sets of examples by name: what `text` returns, or examples that can be indexed. All must have
        arrays of the same names, shapes and dtypes.
      shares: A number for each set, of any sum; 0 for none of it.
      changes: Other shares, from a number of examples on: `{100_000: {"a": 1, "b": 1}}`. Examples are counted
        from 0 over the whole run; a step has as many as the batch.

    Raises:
      UsageError: The names of the shares are not those of the sets, or a share is negative or not finite.
      ExamplesError: A set cannot be indexed and is not of `text`.

    Example:
      >>> mixed = mw.data.mixture({"a": {"x": np.zeros(10)}, "b": {"x": np.ones(10)}}, {"a": 3, "b": 1})
      >>> sharding = mw.Layout(mw.make_mesh("data=1", jax.devices()[:1])).batch_sharding
      >>> with mw.batches(mixed, 8, sharding) as data:
      ...     next(data)["x"].sum()
      np.float64(2.0)
    """
    shares_from = {0: shares, **(changes or {})}
    for start, current_shares in shares_from.items():
        _check_shares(examples, current_shares)
        if start < 0 or (start == 0 and current_shares is not shares):
            raise UsageError(f"mw.data.mixture: changes from {start} on; the first must be after example 0.")
    for name, example_set in examples.items():
        if not isinstance(example_set, Text) and not is_indexed(example_set):
            raise ExamplesError(
                f"mw.data.mixture: {name!r} is of type {type(example_set).__name__}; a set must be of "
                "mw.data.text, or have __len__ and __getitem__."
            )
    return Mixture(dict(examples), {start: dict(shares_from[start]) for start in sorted(shares_from)})


def _check_shares(examples: Mapping[str, Any], shares: Mapping[str, float]) -> None:
    if shares.keys() != examples.keys() or not shares:
        raise UsageError(
            f"mw.data.mixture: the shares are of {sorted(shares)}, but the sets of examples are "
            f"{sorted(examples)}."
        )
    if not all(0 <= share < float("inf") for share in shares.values()) or not any(shares.values()):
        raise UsageError(
            f"mw.data.mixture: shares={dict(shares)}; they must be positive numbers, or 0 for some."
        )


class MixedSamples:
    """All samples of a mixture; see `Samples`. The state is how many each set has given."""

    def __init__(self, mixed: Mixture, seed: int | None, epochs: int | None, map_seed: tuple[int, int]):
        self._names, self._seed, self._epochs = sorted(mixed.examples), seed, epochs
        sets = (mixed.examples[name] for name in self._names)
        self._sets = [_counted(example_set, seed, map_seed) for example_set in sets]
        self._shares = [shares_of(start, shares, self._names) for start, shares in mixed.shares.items()]

    def open(self, position: Position) -> Stretch | None:
        """Return the samples from a position on."""
        if position.stretch:
            return None
        counts = None if position.state is None else [position.state[name] for name in self._names]
        if counts is not None and sum(counts) != position.samples:
            counts = None
        return _MixedStretch(self._names, self._sets, self._shares, position.samples, counts, self._epochs)

    def state(self, position: Position) -> dict[str, Any]:
        """Return a position, and the seed, the data and the shares so far that it belongs to."""
        stretch_state = {} if position.state is None else {"state": position.state}
        data = {name: counted.digest for name, counted in zip(self._names, self._sets, strict=True)}
        so_far = [shares_now for shares_now in self._shares if shares_now.start < max(1, position.samples)]
        shares = [[shares_now.start, *shares_now.by_source] for shares_now in so_far]
        of_data = {"seed": self._seed, "num_examples": None, "data": data, "shares": json.dumps(shares)}
        return {"samples": position.samples, **of_data, **stretch_state}


def _counted(examples: Any, seed: int | None, map_seed: tuple[int, int]) -> Counted:
    if isinstance(examples, Text):
        return CountedRows(examples, seed)
    return CountedExamples(seeded(as_source(examples), map_seed), seed)


class _MixedSource(PartSource):
    """The samples of several sets. An id is the number in a set times the number of sets, plus the set's."""

    def __init__(self, names: list[str], sets: list[Counted]):
        self._names, self._sets = names, sets

    def fetch(self, part: Part) -> PyTree:
        """Return the samples of a part as a batch."""
        within, of_set = np.divmod(part.ids, len(self._sets))
        present = np.unique(of_set).tolist()
        batches = [self._sets[i].read(within[of_set == i]) for i in present]
        self._check_same(present, batches)
        # Each set is read once, and its rows are then put back into the order of the turns.
        back = np.argsort(np.concatenate([np.flatnonzero(of_set == i) for i in present]))
        return jax.tree.map(lambda *x: np.concatenate(x)[back], *batches)

    def _check_same(self, present: list[int], batches: list[PyTree]) -> None:
        layouts = [
            jax.tree.map(lambda x: f"{x.dtype}{list(x.shape[1:])}", batch, is_leaf=lambda x: x is None)
            for batch in batches
        ]
        for i, other in zip(present[1:], layouts[1:], strict=True):
            if other != layouts[0]:
                first = self._names[present[0]]
                raise ExamplesError(
                    f"mw.data.mixture: examples of {first!r} are {layouts[0]}, but those of "
                    f"{self._names[i]!r} are {other}.\n"
                    "  All sets need arrays of the same names, shapes and dtypes."
                )


class _MixedStretch:
    """The samples of a mixture from a number on."""

    def __init__(
        self,
        names: list[str],
        sets: list[Counted],
        shares: list[Shares],
        start: int,
        counts: list[int] | None,
        epochs: int | None,
    ):
        self._names, self._sets, self._epochs = names, sets, epochs
        self._turns = Turns(shares, start if counts else 0, counts)
        # Without saved counts the turns are played again from the first example.
        while self._turns.start < start:
            self._turns.next()
        self._source, self._has_ended = _MixedSource(names, sets), False
        self._counts = list(self._turns.counts)

    def take(self, num_samples: int, rows: np.ndarray) -> tuple[int, Part]:
        """Move on by `num_samples`, or by as many as are left; see `Stretch`."""
        stops = [num_samples + count for count in self._counts]
        if self._epochs is not None:
            stops = [
                counted.available(stop, self._epochs) for counted, stop in zip(self._sets, stops, strict=True)
            ]
        ids: list[int] = []
        while len(ids) < num_samples and not self._has_ended:
            chosen = self._turns.next()
            # The next sample of this set would begin one epoch too many.
            if self._counts[chosen] == stops[chosen]:
                self._has_ended = True
            else:
                ids.append(self._counts[chosen] * len(self._sets) + chosen)
                self._counts[chosen] += 1
        return len(ids), Part(self._source, np.asarray(ids, np.int64)[rows[rows < len(ids)]])

    @property
    def state(self) -> dict[str, int]:
        """The number of samples that each set has given."""
        return dict(zip(self._names, self._counts, strict=True))
