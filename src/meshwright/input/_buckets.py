"""The order of examples that are grouped by length.

Each bucket has an order of its own, a permutation as that of all examples would be; the state is how many of
each bucket were read. The bucket of the next batch is drawn, by the seed, the epoch and the number of samples
read, among those that have enough left for it, in proportion to the batches that they have left. So any
position can be jumped to, no process has a say, and a run goes on with another batch size without repeating
or leaving out an example. What fills no batch of its own is put together at the end of an epoch, the longest
first.
"""

import math
from typing import Any

import numpy as np

from meshwright.input._bucketed import Bucketed
from meshwright.input._order import Order
from meshwright.input._source import Part
from meshwright.input._stretches import Position


class Buckets:
    """All samples of a run: a stretch for each epoch."""

    def __init__(self, source: Bucketed, seed: int | None, epochs: int | None):
        self._source, self._seed = source, seed
        self._orders = [Order(len(members), seed) if len(members) else None for members in source.members]
        self._epochs = math.inf if epochs is None else epochs

    def open(self, position: Position) -> "Grouped | None":
        epoch, _, state = position
        if epoch >= self._epochs:
            return None
        return Grouped(self._source, self._orders, self._seed, epoch, state)

    def state(self, position: Position) -> dict[str, Any]:
        epoch, samples, state = position
        known = {} if state is None else {"state": state}
        said = {"seed": self._seed, "num_examples": len(self._source), "lengths": self._source.digest}
        return {"epoch": epoch, "samples": samples, **said, **known}


class Grouped:
    """The samples that are left of an epoch, of which so many of each bucket are taken."""

    def __init__(
        self,
        source: Bucketed,
        orders: list[Order | None],
        seed: int | None,
        epoch: int,
        taken: list[int] | None,
    ):
        self._source, self._orders, self._seed, self._epoch = source, orders, seed, epoch
        self._sizes = np.array([len(members) for members in source.members])
        self._taken = np.zeros_like(self._sizes) if taken is None else np.array(taken)

    @property
    def state(self) -> list[int]:
        """How many of each bucket are taken."""
        return self._taken.tolist()

    def take(self, num_samples: int, rows: np.ndarray) -> tuple[int, Part]:
        counts = self._counts(num_samples)
        count, chosen = int(counts.sum()), np.flatnonzero(counts)[::-1]
        if not count:
            return 0, Part(self._source, rows[:0])
        ids = np.concatenate([self._ids(bucket, counts[bucket]) for bucket in chosen])
        self._taken = self._taken + counts
        length = int(self._source.buckets[chosen[0]])
        return count, Part(self._source, ids[rows[rows < count]], epochs=self._epoch, length=length)

    def _ids(self, bucket: int, count: int) -> np.ndarray:
        """Return the next examples of a bucket."""
        start, order = self._epoch * self._sizes[bucket] + self._taken[bucket], self._orders[bucket]
        assert order is not None  # a bucket with examples has one
        return self._source.members[bucket][order.ids(int(start), np.arange(count))]

    def _counts(self, num_samples: int) -> np.ndarray:
        """Return how many to take of each bucket: all of one, or at the end of the longest that are left."""
        left = self._sizes - self._taken
        whole = left // num_samples
        if whole.any():
            return num_samples * (np.arange(len(left)) == self._drawn(whole))
        before = np.cumsum(left[::-1])[::-1] - left  # in longer buckets
        return np.clip(num_samples - before, 0, left)

    def _drawn(self, whole: np.ndarray) -> int:
        """Return the next batch's bucket, of those with `whole` batches left; without a seed, the first's."""
        if self._seed is None:
            nexts = [self._next(bucket) if n else math.inf for bucket, n in enumerate(whole)]
            return int(np.argmin(nexts))
        draw = np.random.default_rng([self._seed, self._epoch, int(self._taken.sum())]).integers(whole.sum())
        return int(np.searchsorted(np.cumsum(whole), draw, side="right"))

    def _next(self, bucket: int) -> int:
        return int(self._source.members[bucket][self._taken[bucket]])
