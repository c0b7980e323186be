"""The samples of a run, one after the other from any position on, and the batches that they fill.

They come in stretches. Examples that can be indexed are one stretch, which runs on over all epochs in
the order of `_order.py`. A function of the epoch gives a stretch for each: shuffled, where what it
returned can be indexed; else in its own order, and then to continue in the middle is to skip.
"""

import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from meshwright.errors import ExamplesError, InputError
from meshwright.input._order import Order
from meshwright.input._protocol import Source
from meshwright.input._source import Part, as_source, is_indexed

_GATHERING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Position(NamedTuple):
    """Where a run stands: so many samples into a stretch."""

    stretch: int
    samples: int


class Stretch(Protocol):
    """Samples that are left, in their order."""

    def take(self, num_samples: int, rows: np.ndarray) -> tuple[int, Part]:
        """Move on by `num_samples`, or as many as are left; return how many, and those of them at `rows`.

        Of `rows` (int64[k], ascending, below `num_samples`) those beyond the end are left out.
        """
        ...


class Samples(Protocol):
    """All samples of a run."""

    def open(self, position: Position) -> Stretch | None:
        """Return a stretch from `position` on, or None after the last."""
        ...

    def state(self, position: Position) -> dict[str, Any]:
        """Return `position`, and what it holds good for, as JSON-able values."""
        ...


def samples_of(examples: Any, seed: int | None, epochs: int | None) -> Samples:
    """Return the samples of `examples` of any kind that `batches` takes.

    Raises:
      ExamplesError: they are of no such kind, or there are none.
    """
    if callable(examples) and not is_indexed(examples):
        return _ByEpoch(by_epoch(examples), seed, epochs)
    return _Fixed(as_source(examples), seed, epochs)


def by_epoch(examples: Callable[..., Any]) -> Callable[[int], Any]:
    """Return a function of the epoch, of one that takes it (its one required argument) or takes none.

    Raises:
      ExamplesError: the function requires more.
    """
    required = [
        parameter.name
        for parameter in inspect.signature(examples).parameters.values()
        if parameter.default is parameter.empty and parameter.kind not in _GATHERING
    ]
    if len(required) > 1:
        raise ExamplesError(
            f"a function that gives examples takes the epoch or nothing; this one requires {required}.\n"
            "  Bind the rest: functools.partial(function, ...)."
        )
    return examples if required else lambda epoch: examples()


def iterated(examples: Any) -> Iterator[Any]:
    """Return an iterator over what a function of the epoch returned.

    Raises:
      ExamplesError: it cannot be iterated over.
    """
    if not isinstance(examples, Iterable):
        raise ExamplesError(
            f"the function that gives examples returned a {type(examples).__name__}.\n"
            "  Return an iterable of them, or what can be indexed and has a length."
        )
    return iter(examples)


def shares(
    samples: Samples, position: Position, batch_size: int, rows: np.ndarray
) -> Iterator[tuple[list[Part], Position]]:
    """Yield what to read of each whole batch from `position` on, and the position after it.

    A batch may come from several stretches; of some of them there may be nothing to read.

    Args:
      rows: of a batch, those to be read: int64[k], ascending.

    Raises:
      ExamplesError: an epoch has no examples.
    """
    stretch, parts, filled = samples.open(position), [], 0
    while stretch is not None:
        count, part = stretch.take(batch_size - filled, rows[rows >= filled] - filled if filled else rows)
        parts.append(part)
        filled += count
        position = Position(position.stretch, position.samples + count)
        if filled == batch_size:
            yield parts, position
            parts, filled = [], 0
        elif not count:
            position = _next_epoch(position)
            stretch = samples.open(position)


def _next_epoch(position: Position) -> Position:
    epoch, samples = position
    if not samples:
        raise ExamplesError(
            f"epoch {epoch} has no examples.\n"
            "  A function that gives examples must return a new iterable each time it is called."
        )
    return Position(epoch + 1, 0)


class _Fixed:
    """Examples that can be indexed, the same in all epochs: one stretch."""

    def __init__(self, source: Source, seed: int | None, epochs: int | None):
        self._source, self._seed, self._order = source, seed, Order(len(source), seed)
        self._stop = math.inf if epochs is None else epochs * len(source)

    def open(self, position: Position) -> Stretch | None:
        if position.stretch:
            return None
        return _Indexed(self._source, self._order, position.samples, self._stop)

    def state(self, position: Position) -> dict[str, Any]:
        return {"samples": position.samples, "seed": self._seed, "num_examples": len(self._source)}


class _ByEpoch:
    """What a function returns for each epoch: a stretch for each."""

    def __init__(self, examples_of: Callable[[int], Any], seed: int | None, epochs: int | None):
        self._examples_of, self._seed = examples_of, seed
        self._epochs = math.inf if epochs is None else epochs

    def open(self, position: Position) -> Stretch | None:
        epoch, start = position
        if epoch >= self._epochs:
            return None
        examples = self._examples_of(epoch)
        if not is_indexed(examples):
            return _Iterated(examples, epoch, start)
        source = as_source(examples)
        if start > len(source):
            raise _changed(epoch, start, len(source))
        first, stop = epoch * len(source), (epoch + 1) * len(source)
        return _Indexed(source, Order(len(source), self._seed), first + start, stop)

    def state(self, position: Position) -> dict[str, Any]:
        epoch, samples = position
        return {"epoch": epoch, "samples": samples, "seed": self._seed, "num_examples": None}


class _Indexed:
    """The samples at positions `start` to `stop`, counted from the first epoch on, of a source's order."""

    def __init__(self, source: Source, order: Order, start: int, stop: float):
        self._source, self._order, self._start, self._stop = source, order, start, stop

    def take(self, num_samples: int, rows: np.ndarray) -> tuple[int, Part]:
        start, count = self._start, int(min(num_samples, self._stop - self._start))
        rows = rows if count == num_samples else rows[rows < count]
        self._start += count
        return count, (self._source, self._order.ids(start, rows) if rows.size else rows)


class _Iterated:
    """What is left of an iterable after `start` examples of it."""

    def __init__(self, examples: Any, epoch: int, start: int):
        self._examples = iterated(examples)
        skipped = sum(1 for _ in itertools.islice(self._examples, start))
        if skipped < start:
            raise _changed(epoch, start, skipped)

    def take(self, num_samples: int, rows: np.ndarray) -> tuple[int, Part]:
        taken = list(itertools.islice(self._examples, num_samples))
        return len(taken), (taken, rows[rows < len(taken)])


def _changed(epoch: int, start: int, num_examples: int) -> InputError:
    return InputError(
        f"the data changed since the checkpoint: {start} examples of epoch {epoch} were read then, and now "
        f"it has {num_examples}.\n  Give back the same data, or start a new run."
    )
