"""The order of examples that are grouped by length.

Each bucket has its own order, a permutation made like that of all examples. The state is the number of
examples read from each bucket. The bucket of the next batch is drawn, by the seed, the epoch and the number
of samples read, among those with enough examples left, in proportion to their remaining batches. So a run can
start at any position, processes have no influence, and a run continues with another batch size without
repeating or leaving out an example. Examples that fill no batch of one bucket are batched together at the end
of an epoch, the longest first.
"""

import math
from typing import Any

import numpy as np

from meshwright.data._bucketed import Bucketed
from meshwright.data._order import Order
from meshwright.data._source import Part
from meshwright.data._stretches import Position


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
        stretch_state = {} if state is None else {"state": state}
        data_facts = {"seed": self._seed, "num_examples": len(self._source), "lengths": self._source.digest}
        return {"epoch": epoch, "samples": samples, **data_facts, **stretch_state}


class Grouped:
    """The remaining samples of an epoch, after some of each bucket were taken."""

    def __init__(
        self,
        source: Bucketed,
        orders: list[Order | None],
        seed: int | None,
        epoch: int,
        num_taken: list[int] | None,
    ):
        self._source, self._orders, self._seed, self._epoch = source, orders, seed, epoch
        self._sizes = np.array([len(members) for members in source.members])
        self._num_taken = np.zeros_like(self._sizes) if num_taken is None else np.array(num_taken)

    @property
    def state(self) -> list[int]:
        """Number of samples taken from each bucket."""
        return self._num_taken.tolist()

    def take(self, num_samples: int, rows: np.ndarray) -> tuple[int, Part]:
        counts = self._counts(num_samples)
        count, chosen = int(counts.sum()), np.flatnonzero(counts)[::-1]
        if not count:
            return 0, Part(self._source, rows[:0])
        ids = np.concatenate([self._ids(bucket, counts[bucket]) for bucket in chosen])
        self._num_taken = self._num_taken + counts
        length = int(self._source.buckets[chosen[0]])
        return count, Part(self._source, ids[rows[rows < count]], epochs=self._epoch, length=length)

    def _ids(self, bucket: int, count: int) -> np.ndarray:
        """Return the next examples of a bucket."""
        start, order = self._epoch * self._sizes[bucket] + self._num_taken[bucket], self._orders[bucket]
        assert order is not None  # a bucket with examples has one
        return self._source.members[bucket][order.ids(int(start), np.arange(count))]

    def _counts(self, num_samples: int) -> np.ndarray:
        """Return the number of samples to take from each bucket: all from one, or at the end the longest."""
        remaining = self._sizes - self._num_taken
        whole = remaining // num_samples
        if whole.any():
            return num_samples * (np.arange(len(remaining)) == self._drawn(whole))
        num_longer = np.cumsum(remaining[::-1])[::-1] - remaining  # number left in longer buckets
        return np.clip(num_samples - num_longer, 0, remaining)

    def _drawn(self, whole: np.ndarray) -> int:
        """Return the bucket of the next batch, one with `whole` batches left.

        Without a seed, that of the first example.
        """
        if self._seed is None:
            nexts = [self._next(bucket) if n else math.inf for bucket, n in enumerate(whole)]
            return int(np.argmin(nexts))
        draw = np.random.default_rng([self._seed, self._epoch, int(self._num_taken.sum())]).integers(whole.sum())
        return int(np.searchsorted(np.cumsum(whole), draw, side="right"))

    def _next(self, bucket: int) -> int:
        return int(self._source.members[bucket][self._num_taken[bucket]])
