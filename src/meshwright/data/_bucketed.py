"""Examples of several lengths; each batch is padded to one of a few lengths."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np

from meshwright.base._internal import PyTree, tree
from meshwright.data._kinds import is_indexed
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
