"""The samples of a run, in order from any position on, and the batches that they fill.

Samples come in stretches. Examples that can be indexed are one stretch, which runs over all epochs in the
order of `_order.py`; so are texts and mixtures, whose samples have numbers (`_counted.py`). All other
examples have one stretch per epoch. It is shuffled if a function returns examples that can be indexed;
otherwise it has its own order, and continuing inside it means setting the iterator's state, or skipping.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from meshwright.data._batched import Batched, Once, check_readable_again
from meshwright.data._bucketed import Bucketed, Buckets
from meshwright.data._counted import CountedRows, CountedSamples
from meshwright.data._kinds import Source, by_epoch, check_not_batched, is_indexed, iterated
from meshwright.data._mapped import MappedIterable, seeded
from meshwright.data._mixture import MixedSamples, Mixture
from meshwright.data._order import Order, Position
from meshwright.data._source import Part, as_source, unreadable
from meshwright.data._stretches import Indexed, Iterated, Ready, Stretch, as_json
from meshwright.data._text import Text
from meshwright.errors import ExamplesError, InputError


class Samples(Protocol):
    """All samples of a run."""

    def open(self, position: Position) -> Stretch | None:
        """Return a stretch from `position` on, or None after the last."""
        ...

    def state(self, position: Position) -> dict[str, Any]:
        """Return `position`, and the seed and data that it belongs to, as JSON-able values."""
        ...


def samples_of(examples: Any, seed: int | None, epochs: int | None, map_seed: tuple[int, int]) -> Samples:
    """Return the samples of `examples` of any kind that `batches` takes."""
    examples = readable_again(examples, epochs)
    if isinstance(examples, Text):
        return CountedSamples(CountedRows(examples, seed), seed, epochs)
    if isinstance(examples, Mixture):
        return MixedSamples(examples, seed, epochs, map_seed)
    if isinstance(examples, Bucketed):
        return Buckets(seeded(examples, map_seed), seed, epochs)
    if is_indexed(examples):
        return _Fixed(seeded(as_source(examples), map_seed), seed, epochs)
    return _ByEpoch(examples, seed, num_epochs_of(examples, epochs), map_seed)


def readable_again(examples: Any, epochs: int | None) -> Any:
    """Return `examples` in a form that can be read from the beginning more than once."""
    if isinstance(examples, Batched):
        return replace(examples, loader=readable_again(examples.loader, epochs))
    if isinstance(examples, MappedIterable):
        return replace(examples, examples=readable_again(examples.examples, epochs))
    if not isinstance(examples, Iterator):
        return examples
    check_readable_again(examples)
    if (epochs or 1) > 1:
        raise ExamplesError(
            f"an iterator of type {type(examples).__name__} can be read only once, but epochs={epochs}.\n"
            "  Give the data set itself, or a function of the epoch that returns an iterator."
        )
    return Once(examples)


def num_epochs_of(examples: Any, epochs: int | None) -> int | None:
    """Return the number of epochs in which `examples` are read: at most one for an iterator.

    Example:
      >>> mw.data._internal.num_epochs_of([1, 2], 3)
      3
    """
    return 1 if isinstance(_innermost(examples), Iterator | Once) else epochs


def leave(examples: Any, state: Any) -> None:
    """Set an iterator that was read ahead to `state`, the position after the examples that were used."""
    innermost = _innermost(examples)
    if isinstance(innermost, Once):
        innermost.stand(state)


def _innermost(examples: Any) -> Any:
    while isinstance(examples, Batched | MappedIterable):
        examples = examples.loader if isinstance(examples, Batched) else examples.examples
    return examples


def of_epoch(examples: Any, epoch: int) -> Any:
    """Return the examples of one epoch; a function of the epoch is called when they are read."""
    if isinstance(examples, Batched):
        return replace(examples, loader=of_epoch(examples.loader, epoch))
    if isinstance(examples, Text | Mixture):
        return examples.of_epoch(epoch)
    if callable(examples) and not is_indexed(examples):
        return partial(by_epoch(examples), epoch)
    return examples


def shares(
    samples: Samples, position: Position, batch_size: int, rows: np.ndarray
) -> Iterator[tuple[list[Part], Position]]:
    """Yield the parts to read for each whole batch from `position` on, and the position after it.

    A batch may come from several stretches; for some of these there may be nothing to read.
    """
    stretch, parts, filled = samples.open(position), [], 0
    while stretch is not None:
        count, part = stretch.take(batch_size - filled, rows[rows >= filled] - filled if filled else rows)
        parts.append(part)
        filled += count
        position = Position(position.stretch, position.samples + count, stretch.state)
        if filled == batch_size:
            yield parts, position
            parts, filled = [], 0
        elif not count:
            position = _next_epoch(position)
            stretch = samples.open(position)


def _next_epoch(position: Position) -> Position:
    epoch, samples, _ = position
    if not samples:
        raise ExamplesError(
            f"epoch {epoch} has no examples.\n"
            "  A function that returns examples must return a new iterable each time it is called."
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
        return Indexed(self._source, self._order, position.samples, self._stop)

    def state(self, position: Position) -> dict[str, Any]:
        return {"samples": position.samples, "seed": self._seed, "num_examples": len(self._source)}


class _ByEpoch:
    """Examples of a function of the epoch, or an iterable that is read anew: a stretch for each epoch."""

    def __init__(self, examples: Any, seed: int | None, epochs: int | None, map_seed: tuple[int, int]):
        self._batched = examples if isinstance(examples, Batched) else None
        self._items_of = _items_by_epoch(self._batched.loader if self._batched else examples)
        self._seed, self._map_seed = seed, map_seed
        self._epochs = math.inf if epochs is None else epochs

    def open(self, position: Position) -> Stretch | None:
        epoch, start, state = position
        if epoch >= self._epochs:
            return None
        items = self._items_of(epoch)
        if isinstance(items, Batched | Bucketed):
            kind = type(items).__name__
            raise ExamplesError(
                f"the function that returns examples returned a mw.data.{kind}.\n"
                f"  Put it around the function: mw.data.{kind}(lambda epoch: ...)."
                if self._batched is None and kind == "Batched"
                else f"a mw.data.{kind} is not a loader, and a function of the epoch cannot return one."
            )
        if self._batched is not None:
            return Ready(self._batched, iterated(items), epoch, start, state)
        check_not_batched(items)
        if not is_indexed(items):
            return Iterated(iterated(items), epoch, start, state, self._map_seed)
        return self._indexed(seeded(as_source(items), self._map_seed), epoch, start)

    def _indexed(self, source: Source, epoch: int, start: int) -> Stretch:
        if start > len(source):
            raise InputError(
                f"the data changed since the checkpoint: {start} examples of epoch {epoch} were read then, "
                f"but there are only {len(source)} now.\n  Restore the same data, or start a new run."
            )
        first, stop = epoch * len(source), (epoch + 1) * len(source)
        return Indexed(source, Order(len(source), self._seed), first + start, stop)

    def state(self, position: Position) -> dict[str, Any]:
        epoch, samples, state = position
        stretch_state = {} if state is None else {"state": as_json(state)}
        return {"epoch": epoch, "samples": samples, "seed": self._seed, "num_examples": None, **stretch_state}


def _items_by_epoch(items: Any) -> Callable[[int], Any]:
    if callable(items) and not is_indexed(items):
        return by_epoch(items)
    if isinstance(items, Iterable):
        return lambda epoch: items
    raise unreadable(items)
