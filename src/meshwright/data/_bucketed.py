"""Examples of several lengths; each batch is padded to one of a few lengths.

Each bucket has its own order, a permutation made like that of all examples. The state is the number of
examples read from each bucket. The bucket of the next batch is drawn, by the seed, the epoch and the number
of samples read, among those with enough examples left, in proportion to their remaining batches. So a run can
start at any position, processes have no influence, and a run continues with another batch size without
repeating or leaving out an example. Examples that fill no batch of one bucket are batched together at the end
of an epoch, the longest first.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np

from meshwright.base._internal import PyTree, tree
from meshwright.data._kinds import is_indexed
from meshwright.data._order import Order, Position
from meshwright.data._source import Part, PartSource, rows_of
from meshwright.errors import ExamplesError, did_you_mean


@dataclass(frozen=True, repr=False)
class Bucketed(PartSource):
    """Examples of several lengths, batched with others of similar length and padded.

    In training, a batch has examples of one bucket, padded to the bucket's length. At the end of an epoch the
    remaining examples of all buckets are batched together, the longest first, so that each example comes once
    per epoch. The step is compiled for every length before it starts. In evaluation and prediction the order
    is the examples' own, and each batch is padded to the bucket of its longest example.

    All of this follows from `lengths`, which every process knows: processes need not exchange shapes.

    Args:
      examples: Examples that can be indexed.
      lengths: Length of each example, int[num_examples].
      buckets: Lengths that batches may have, ascending.
      pad: Fill value of each array to pad, by name (`tokens`, `text/labels`); the end of its first dimension
        is padded. Leave it empty if a `collate` pads; that function takes the batch's length as `length`.

    Raises:
      ExamplesError: The examples cannot be indexed, or the lengths are not one per example or exceed all
        buckets.

    Example:
      >>> lengths = [5, 60, 7, 50]
      >>> examples = [{"tokens": np.ones(length, np.int32)} for length in lengths]
      >>> bucketed = mw.data.Bucketed(examples, lengths, buckets=(16, 64), pad={"tokens": 0})
      >>> sharding = mw.Layout(mw.make_mesh("data=2", jax.devices()[:2])).batch_sharding
      >>> with mw.batches(bucketed, 2, sharding, epochs=1) as data:
      ...     sorted(batch["tokens"].shape for batch in data)
      [(2, 16), (2, 64)]
    """

    examples: Any
    lengths: Sequence[int] | np.ndarray = field(repr=False)
    buckets: Sequence[int]
    pad: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not is_indexed(self.examples) or isinstance(self.examples, Mapping):
            raise ExamplesError(
                "mw.data.Bucketed takes examples that can be indexed, such as a list of dictionaries; "
                f"{type(self.examples).__name__} cannot.\n  For a loader whose batches are already padded, "
                "use mw.data.Batched(loader, shapes=[...])."
            )
        lengths = np.asarray(self.lengths)
        if lengths.shape != (len(self.examples),) or lengths.dtype.kind not in "iu":
            raise ExamplesError(
                f"mw.data.Bucketed: lengths must be a whole number for each of {len(self.examples)} "
                f"examples; found {lengths.dtype}{list(lengths.shape)}."
            )
        if not self.buckets or list(self.buckets) != sorted({*self.buckets}) or self.buckets[0] < 1:
            raise ExamplesError(
                f"mw.data.Bucketed: buckets={self.buckets}; they must be positive and ascending."
            )
        if len(lengths) and lengths.max() > self.buckets[-1]:
            raise ExamplesError(
                f"mw.data.Bucketed: {int((lengths > self.buckets[-1]).sum())} examples are longer than the "
                f"largest bucket, {self.buckets[-1]}; example {lengths.argmax()} has length "
                f"{lengths.max()}.\n"
                "  Cut them, leave them out, or add a bucket."
            )

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> PyTree:
        return self.examples[index]

    def __repr__(self) -> str:
        return f"Bucketed({len(self)} examples, buckets={list(self.buckets)}, pad={dict(self.pad)})"

    def select(self, ids: Iterable[int]) -> "Bucketed":
        """Return some of the examples, as `select` of Hugging Face's data sets does."""
        ids = list(ids)
        return replace(self, examples=[self.examples[i] for i in ids], lengths=np.asarray(self.lengths)[ids])

    @cached_property
    def bucket_of(self) -> np.ndarray:
        """Number of each example's bucket, int64[num_examples]."""
        return np.searchsorted(self.buckets, self.lengths)

    @cached_property
    def members(self) -> list[np.ndarray]:
        """Ids of the examples of each bucket in order, int64[k] for each."""
        order, sizes = (
            np.argsort(self.bucket_of, kind="stable"),
            np.bincount(self.bucket_of, minlength=len(self.buckets)),
        )
        return np.split(order, np.cumsum(sizes)[:-1])

    @cached_property
    def digest(self) -> str:
        """A digest of the assignment of examples to buckets."""
        assignment = f"{list(self.buckets)}".encode() + self.bucket_of.astype("<i8").tobytes()
        return hashlib.sha256(assignment).hexdigest()[:12]

    def length_of(self, ids: np.ndarray) -> int:
        """Return the length that a batch of these examples is padded to."""
        return int(self.buckets[int(self.bucket_of[ids].max())])

    def fetch(self, part: Part) -> list[PyTree]:
        """Return the examples of a part of this source, padded if the part has a length."""
        examples = rows_of(part._replace(source=self.examples))
        length = part.length
        return examples if length is None or not self.pad else [self._padded(x, length) for x in examples]

    def _padded(self, example: PyTree, length: int) -> PyTree:
        is_list = lambda x: isinstance(x, list)  # noqa: E731
        named, structure = tree.named_leaves(example, is_list), jax.tree.structure(example, is_leaf=is_list)
        missing = [name for name in self.pad if name not in named]
        if missing:
            raise ExamplesError(
                f"mw.data.Bucketed: pad names {missing[0]!r}, which an example does not have."
                f"{did_you_mean(missing[0], named)}\n  It has: {', '.join(named) or 'no names'}."
            )
        return structure.unflatten(
            [self._longer(name, x, length) if name in self.pad else x for name, x in named.items()]
        )

    def _longer(self, name: str, x: Any, length: int) -> np.ndarray:
        x = np.asarray(x)
        if not x.ndim or len(x) > length:
            raise ExamplesError(
                f"mw.data.Bucketed: {name} of shape {x.shape} cannot be padded to length {length}.\n"
                "  Check that `lengths` has the length of each example."
            )
        widths = [(0, length - len(x)), *[(0, 0)] * (x.ndim - 1)]
        return np.pad(x, widths, constant_values=self.pad[name])


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
        # Each bucket with examples has an order.
        assert order is not None
        return self._source.members[bucket][order.ids(int(start), np.arange(count))]

    def _counts(self, num_samples: int) -> np.ndarray:
        """Return the number of samples to take from each bucket: all from one, or at the end the longest."""
        remaining = self._sizes - self._num_taken
        whole = remaining // num_samples
        if whole.any():
            return num_samples * (np.arange(len(remaining)) == self._drawn(whole))
        # The number of samples that are left in longer buckets.
        num_longer = np.cumsum(remaining[::-1])[::-1] - remaining
        # At the end of an epoch no bucket fills a batch: the longest remaining examples come first.
        return np.clip(num_samples - num_longer, 0, remaining)

    def _drawn(self, whole: np.ndarray) -> int:
        """Return the bucket of the next batch, one with `whole` batches left.

        Without a seed, that of the first example.
        """
        if self._seed is None:
            nexts = [self._next(bucket) if n else math.inf for bucket, n in enumerate(whole)]
            return int(np.argmin(nexts))
        # The draw follows from the position alone, so it is the same on all processes and after a restart.
        draw = np.random.default_rng([self._seed, self._epoch, int(self._num_taken.sum())]).integers(
            whole.sum()
        )
        return int(np.searchsorted(np.cumsum(whole), draw, side="right"))

    def _next(self, bucket: int) -> int:
        return int(self._source.members[bucket][self._num_taken[bucket]])
