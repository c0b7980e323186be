"""Samples by their numbers, counted over all epochs: those of texts, of examples with indices, and mixed.

A sample's number names its example, whatever was read before. Three rules make numbers examples:

- Examples that can be indexed have the order of `_order`.
- Rows of texts, of which there are more and more, come block by block in the first epoch, in a random order
  within each block; in later epochs, when all are there, in the order of `_order`.
- Samples of a mixture have the number of a source, and a number in it; `_mixture` chooses the source.
"""

from typing import Any, Protocol

import numpy as np

from meshwright.base._internal import PyTree
from meshwright.data._order import Position, record_ids
from meshwright.data._source import Part, PartSource, Source, read
from meshwright.data._stretches import Stretch
from meshwright.data._text import Text


class Counted(Protocol):
    """Samples that can be fetched by their numbers."""

    digest: Any
    """A digest of the examples as a value of JSON, the same on all processes."""

    def available(self, stop: int, epochs: int | None) -> int:
        """Return `stop`, or the number of samples in `epochs` epochs if that is less."""
        ...

    def read(self, numbers: np.ndarray) -> PyTree:
        """Return the samples of these numbers, int64[k], as a batch."""
        ...


class CountedRows:
    """The rows of texts."""

    def __init__(self, text: Text, seed: int | None):
        self._text, self._seed = text, seed
        self.digest = text.rows.digest

    def available(self, stop: int, epochs: int | None) -> int:
        """Return `stop`, or the number of samples in `epochs` epochs if that is less."""
        ends, is_complete = self._text.rows.ends(stop - 1)
        total = int(ends[-1]) if len(ends) else 0
        if not is_complete:
            return stop
        return stop if epochs is None and total else min(stop, (epochs or 0) * total)

    def read(self, numbers: np.ndarray) -> PyTree:
        """Return rows as a batch."""
        first = self._text.epoch
        ends, is_complete = self._text.rows.ends(np.inf if first else int(numbers.max()))
        total = int(ends[-1])
        if self._seed is None:
            return self._text.rows.rows(numbers % total if is_complete else numbers)
        # In the first epoch rows come block by block, as later blocks may not be tokenized yet.
        ids = self._in_first_epoch(numbers, ends)
        if is_complete and (first or numbers.max() >= total):
            # From the second epoch on all rows are there, and the order is that of other examples.
            later = numbers + first * total >= total
            ids[later] = record_ids(numbers[later] + first * total, total, self._seed)
        return self._text.rows.rows(ids)

    def _in_first_epoch(self, numbers: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return the rows at these places of the first epoch; anything for those behind it."""
        blocks = np.minimum(np.searchsorted(ends, numbers, side="right"), len(ends) - 1)
        sizes = np.diff(ends, prepend=0)
        ids = np.empty(len(numbers), np.int64)
        for block in np.unique(blocks).tolist():
            in_block, size = blocks == block, int(sizes[block])
            begin = int(ends[block]) - size
            within = np.minimum(numbers[in_block] - begin, size - 1)
            # The block's number takes the place of the epoch's, so that blocks of one size differ.
            ids[in_block] = begin + record_ids(block * size + within, size, self._seed)
        return ids


class CountedExamples:
    """Examples that can be indexed."""

    def __init__(self, source: Source, seed: int | None):
        self._source, self._seed, self._size = source, seed, len(source)
        self.digest = self._size

    def available(self, stop: int, epochs: int | None) -> int:
        """Return `stop`, or the number of samples in `epochs` epochs if that is less."""
        return stop if epochs is None else min(stop, epochs * self._size)

    def read(self, numbers: np.ndarray) -> PyTree:
        """Return examples as a batch."""
        ids = record_ids(numbers, self._size, self._seed)
        return read([Part(self._source, ids, epochs=numbers // self._size)], None)


class CountedSource(PartSource):
    """A source whose ids are the numbers of samples."""

    def __init__(self, counted: Counted):
        self._counted = counted

    def fetch(self, part: Part) -> PyTree:
        """Return the samples of a part as a batch."""
        return self._counted.read(part.ids)


class CountedStretch:
    """The samples from a number on."""

    state = None

    def __init__(self, counted: Counted, start: int, epochs: int | None):
        self._counted, self._start, self._epochs = counted, start, epochs
        self._source = CountedSource(counted)

    def take(self, num_samples: int, rows: np.ndarray) -> tuple[int, Part]:
        """Move on by `num_samples`, or by as many as are left; see `Stretch`."""
        count = self._counted.available(self._start + num_samples, self._epochs) - self._start
        part = Part(self._source, self._start + rows[rows < count])
        self._start += count
        return count, part


class CountedSamples:
    """All samples of a run; see `Samples`."""

    def __init__(self, counted: Counted, seed: int | None, epochs: int | None):
        self._counted, self._seed, self._epochs = counted, seed, epochs

    def open(self, position: Position) -> Stretch | None:
        """Return the samples from a position on."""
        if position.stretch:
            return None
        return CountedStretch(self._counted, position.samples, self._epochs)

    def state(self, position: Position) -> dict[str, Any]:
        """Return a position, and the seed and data that it belongs to."""
        data_facts = {"seed": self._seed, "num_examples": None, "data": self._counted.digest}
        return {"samples": position.samples, **data_facts}
