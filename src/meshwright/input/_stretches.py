"""Samples that are left of an epoch, or of all epochs, taken batch by batch in their order."""

import base64
from typing import Any, NamedTuple, Protocol

import numpy as np

from meshwright.errors import ExamplesError, InputError
from meshwright.input._batched import Batched, Cursor
from meshwright.input._mapped import Mapped, MappedIterable
from meshwright.input._order import Order
from meshwright.input._protocol import Source
from meshwright.input._source import Arrays, Part


class Position(NamedTuple):
    """Where a run stands: so many samples into a stretch."""

    stretch: int
    samples: int
    state: Any = None
    """Of the stretch; see there."""


class Stretch(Protocol):
    """Samples that are left, in their order."""

    def take(self, num_samples: int, rows: np.ndarray) -> tuple[int, Part]:
        """Move on by `num_samples`, or as many as are left; return how many, and those of them at `rows`.

        Of `rows` (int64[k], ascending, below `num_samples`) those beyond the end are left out.
        """
        ...

    @property
    def state(self) -> Any:
        """What, besides the number of samples taken, says where this stands; None if nothing does."""
        ...


class Indexed:
    """The samples at positions `start` to `stop`, counted from the first epoch on, of a source's order."""

    state = None

    def __init__(self, source: Source, order: Order, start: int, stop: float):
        self._source, self._order, self._start, self._stop = source, order, start, stop

    def take(self, num_samples: int, rows: np.ndarray) -> tuple[int, Part]:
        start, count = self._start, int(min(num_samples, self._stop - self._start))
        rows = rows if count == num_samples else rows[rows < count]
        self._start += count
        if not rows.size:
            return count, Part(self._source, rows)
        return count, Part(self._source, self._order.ids(start, rows), epochs=self._epochs(start, rows))

    def _epochs(self, start: int, rows: np.ndarray) -> int | np.ndarray:
        num_examples = len(self._source)
        first, last = start // num_examples, (start + int(rows[-1])) // num_examples
        return first if first == last else (start + rows) // num_examples


class Iterated:
    """What is left of an iterable after `start` examples of it."""

    def __init__(self, examples: Any, epoch: int, start: int, state: Any, map_seed: tuple[int, int]):
        self._functions = examples.functions if isinstance(examples, MappedIterable) else None
        examples = examples.examples if isinstance(examples, MappedIterable) else examples
        self._cursor = Cursor(examples, state, start, f"examples of epoch {epoch}")
        self._start, self._epoch, self._map_seed = start, epoch, map_seed

    def take(self, num_samples: int, rows: np.ndarray) -> tuple[int, Part]:
        taken, start = self._cursor.take(num_samples), self._start
        self._start += len(taken)
        source = taken if self._functions is None else Mapped(taken, self._functions, self._map_seed)
        return len(taken), Part(source, rows[rows < len(taken)], start, self._epoch)

    @property
    def state(self) -> Any:
        return self._cursor.state


class Ready:
    """What is left of the batches of an epoch after `start` examples of them."""

    def __init__(self, batched: Batched, items: Any, epoch: int, start: int, state: Any):
        self._batched, self._items, self._epoch, self._start = batched, items, epoch, start
        self._begin = state
        self._cursor: Cursor | None = None
        self._state: Any = None

    def take(self, num_samples: int, rows: np.ndarray) -> tuple[int, Part]:
        self._cursor = cursor = self._cursor or self._opened(num_samples)
        number = self._start // num_samples
        taken, self._state = cursor.take(1), cursor.state
        if not taken:
            return 0, Part([], rows[:0])
        is_local = self._batched.rows == "local"
        num_rows = len(rows) if is_local else num_samples
        batch = Arrays(self._batched.of_size(taken[0], num_rows, number))
        if len(batch) < num_rows:
            self._check_last(len(batch), num_rows, number)
            return 0, Part([], rows[:0])
        self._start += num_samples
        return num_samples, Part(batch, np.arange(num_rows) if is_local else rows, epochs=self._epoch)

    @property
    def state(self) -> Any:
        return self._state

    def _opened(self, batch_size: int) -> Cursor:
        num_batches, rest = divmod(self._start, batch_size)
        if rest and self._begin is None:
            raise InputError(
                f"the run stopped after {self._start} examples of epoch {self._epoch}, which is no whole "
                f"number of the loader's batches, now of {batch_size}.\n"
                "  Continue with the batch size that it had."
            )
        return Cursor(self._items, self._begin, num_batches, f"batches of epoch {self._epoch}")

    def _check_last(self, found: int, expected: int, number: int) -> None:
        """Raise an `ExamplesError` if a batch is smaller and not what was left at the end of an epoch."""
        is_last = self._cursor is not None and not self._cursor.take(1)
        if is_last and number:
            return
        what = f"batch {number} of the loader has {found} examples" + ("" if is_last else ", is not the last")
        raise ExamplesError(
            f"{what}, and a batch has {expected}.\n  Give the loader and the run one batch size; only what "
            "is left at the end of an epoch may be smaller, and is left out."
        )


def as_json(state: Any) -> Any:
    """Return the state of a stretch as JSON can hold it: bytes, as some loaders have it, as text."""
    return {"base64": base64.b64encode(state).decode()} if isinstance(state, bytes) else state


def from_json(state: Any) -> Any:
    """Return what `as_json` was given."""
    is_encoded = isinstance(state, dict) and state.keys() == {"base64"}
    return base64.b64decode(state["base64"]) if is_encoded else state
