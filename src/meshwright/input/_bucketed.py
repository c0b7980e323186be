"""Examples of several lengths, each batch padded to one of a few."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np

from meshwright import tree
from meshwright.errors import ExamplesError, nearest
from meshwright.input._kinds import is_indexed
from meshwright.input._source import Part, PartSource, rows_of
from meshwright.tree import PyTree


@dataclass(frozen=True, repr=False)
class Bucketed(PartSource):
    """Examples of several lengths: `mw.Bucketed(examples, lengths, buckets=(64, 128), pad={"tokens": 0})`.

    In training, a batch is of examples of one bucket, padded to the bucket's length. What is left of the
    buckets at the end of an epoch is put together, the longest first, so that each example comes once an
    epoch. The step is compiled for every length before the first one. In evaluation and prediction the order
    is the examples' own, and each batch is padded to the bucket of the longest in it.

    All of that follows from `lengths`, which every process knows: they need not talk about shapes.

    Args:
      examples: what can be indexed.
      lengths: int[num_examples], of each example.
      buckets: the lengths that batches may have.
      pad: the arrays to pad, by name (`tokens`, `text/labels`), and with what. Their first dimension is
        padded at its end. Empty, if a `collate` does it, which then takes the batch's length as `length`.

    Raises:
      ExamplesError: the examples are not indexed, or the lengths are not theirs or exceed all buckets.
    """

    examples: Any
    lengths: Sequence[int] | np.ndarray = field(repr=False)
    buckets: Sequence[int]
    pad: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not is_indexed(self.examples) or isinstance(self.examples, Mapping):
            raise ExamplesError(
                "mw.Bucketed takes examples that can be indexed, such as a list of dictionaries; "
                f"{type(self.examples).__name__} cannot.\n  Of a loader whose batches are padded already, "
                "mw.Batched(loader, shapes=[...]) names the shapes."
            )
        lengths = np.asarray(self.lengths)
        if lengths.shape != (len(self.examples),) or lengths.dtype.kind not in "iu":
            raise ExamplesError(
                f"mw.Bucketed: lengths must be a whole number for each of {len(self.examples)} examples; "
                f"found {lengths.dtype}{list(lengths.shape)}."
            )
        if not self.buckets or list(self.buckets) != sorted({*self.buckets}) or self.buckets[0] < 1:
            raise ExamplesError(f"mw.Bucketed: buckets={self.buckets}; they must be positive and ascending.")
        if len(lengths) and lengths.max() > self.buckets[-1]:
            raise ExamplesError(
                f"mw.Bucketed: {int((lengths > self.buckets[-1]).sum())} examples are longer than the "
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
        """Return some of the examples, as data sets of Hugging Face do."""
        ids = list(ids)
        return replace(self, examples=[self.examples[i] for i in ids], lengths=np.asarray(self.lengths)[ids])

    @cached_property
    def bucket_of(self) -> np.ndarray:
        """The number of each example's bucket: int64[num_examples]."""
        return np.searchsorted(self.buckets, self.lengths)

    @cached_property
    def members(self) -> list[np.ndarray]:
        """The examples of each bucket, in their order: int64[k] for each."""
        order, sizes = (
            np.argsort(self.bucket_of, kind="stable"),
            np.bincount(self.bucket_of, minlength=len(self.buckets)),
        )
        return np.split(order, np.cumsum(sizes)[:-1])

    @cached_property
    def digest(self) -> str:
        """A digest of which example is in which bucket."""
        said = f"{list(self.buckets)}".encode() + self.bucket_of.astype("<i8").tobytes()
        return hashlib.sha256(said).hexdigest()[:12]

    def length_of(self, ids: np.ndarray) -> int:
        """Return the length to which a batch of these examples is padded."""
        return int(self.buckets[int(self.bucket_of[ids].max())])

    def fetch(self, part: Part) -> list[PyTree]:
        """Return the examples of a part of this source, padded if it says to what length."""
        examples = rows_of(part._replace(source=self.examples))
        length = part.length
        return examples if length is None or not self.pad else [self._padded(x, length) for x in examples]

    def _padded(self, example: PyTree, length: int) -> PyTree:
        is_list = lambda x: isinstance(x, list)  # noqa: E731
        named, structure = tree.named_leaves(example, is_list), jax.tree.structure(example, is_leaf=is_list)
        missing = [name for name in self.pad if name not in named]
        if missing:
            close = nearest(missing[0], list(named))
            raise ExamplesError(
                f"mw.Bucketed: pad names {missing[0]!r}, which an example has not."
                f"{f' Did you mean {close!r}?' if close else ''}\n  It has: {', '.join(named) or 'no names'}."
            )
        return structure.unflatten(
            [self._longer(name, x, length) if name in self.pad else x for name, x in named.items()]
        )

    def _longer(self, name: str, x: Any, length: int) -> np.ndarray:
        x = np.asarray(x)
        if not x.ndim or len(x) > length:
            raise ExamplesError(
                f"mw.Bucketed: {name} of shape {x.shape} cannot be padded to length {length}.\n"
                "  Is `lengths` that of each example?"
            )
        widths = [(0, length - len(x)), *[(0, 0)] * (x.ndim - 1)]
        return np.pad(x, widths, constant_values=self.pad[name])
