"""Remaining samples of an epoch, or of all epochs, taken batch by batch in order."""

import base64
from typing import Any, Protocol

import numpy as np

from meshwright.data._batched import Batched, Cursor
from meshwright.data._kinds import Source
from meshwright.data._mapped import Mapped, MappedIterable
from meshwright.data._order import Order
from meshwright.data._source import Arrays, Part
from meshwright.errors import ExamplesError, InputError


class Stretch(Protocol):
    """Remaining samples in order."""

    def take(self, num_samples: int, rows: np.ndarray) -> tuple[int, Part]:
        """Move on by `num_samples`, or by as many as are left, and return their number and some of them."""
        ...

    @property
    def state(self) -> Any:
        """The position besides the number of samples taken; None if that number is enough."""
        ...


class Indexed:
    """The samples at positions `start` to `stop` of a source's order, counted from the first epoch on."""

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
    """The rest of an iterable after its first `start` examples."""

    def __init__(self, examples: Any, epoch: int, start: int, state: Any, map_seed: tuple[int, int]):
        self._functions = examples.functions if isinstance(examples, MappedIterable) else None
        examples = examples.examples if isinstance(examples, MappedIterable) else examples
        self._cursor = Cursor(examples, state, start, f"examples of epoch {epoch}")
        self._start, self._epoch, self._map_seed = start, epoch, map_seed

    def take(self, num_samples: int, rows: np.ndarray) -> tuple[int, Part]:
        examples, start = self._cursor.take(num_samples), self._start
        self._start += len(examples)
        source = examples if self._functions is None else Mapped(examples, self._functions, self._map_seed)
        return len(examples), Part(source, rows[rows < len(examples)], start, self._epoch)

    @property
    def state(self) -> Any:
        return self._cursor.state


class Ready:
    """The rest of an epoch's batches after their first `start` examples."""

    def __init__(self, batched: Batched, items: Any, epoch: int, start: int, state: Any):
        self._batched, self._items, self._epoch, self._start = batched, items, epoch, start
        self._begin = state
        self._cursor: Cursor | None = None
        self._state: Any = None

    def take(self, num_samples: int, rows: np.ndarray) -> tuple[int, Part]:
        self._cursor = cursor = self._cursor or self._opened(num_samples)
        number = self._start // num_samples
        batches, self._state = cursor.take(1), cursor.state
        if not batches:
            return 0, Part([], rows[:0])
        is_local = self._batched.rows == "local"
        num_rows = len(rows) if is_local else num_samples
        batch = Arrays(self._batched.of_size(batches[0], num_rows, number))
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
                f"the run stopped after {self._start} examples of epoch {self._epoch}, which is not a whole "
                f"number of the loader's batches of {batch_size}.\n"
                "  Continue with the batch size that the run had before."
            )
        return Cursor(self._items, self._begin, num_batches, f"batches of epoch {self._epoch}")

    def _check_last(self, num_found: int, expected: int, number: int) -> None:
        """Raise an `ExamplesError` if a batch is smaller than others and not the last of an epoch."""
        # Only the last batch of an epoch may be smaller, so one more item is asked for.
        is_last = self._cursor is not None and not self._cursor.take(1)
        if is_last and number:
            return
        position = "" if is_last else ", is not the last"
        raise ExamplesError(
            f"batch {number} of the loader has {num_found} examples{position}, but a batch has {expected}.\n"
            "  Give the loader and the run the same batch size; only the last batch of an epoch may be "
            "smaller, and is left out."
        )


def as_json(state: Any) -> Any:
    """Return the state of a stretch in a form that JSON can hold: bytes, as some loaders use, become text."""
    return {"base64": base64.b64encode(state).decode()} if isinstance(state, bytes) else state


def from_json(state: Any) -> Any:
    """Return the state that `as_json` was given."""
    is_encoded = isinstance(state, dict) and state.keys() == {"base64"}
    return base64.b64decode(state["base64"]) if is_encoded else state
