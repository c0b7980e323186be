"""Batches that another library's loader makes, and iterators that can be set to a position."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import jax
import numpy as np

from meshwright.base._internal import PyTree, documented
from meshwright.data._collate import check_numbers
from meshwright.errors import ExamplesError, InputError


@documented
@dataclass(frozen=True)
class Batched:
    """A loader whose items are already batches, to be used in place of examples.

    The run is given the same batch size as the loader. An item is a pytree of arrays, tensors or lists of
    numbers, whose first dimensions run over the examples. A smaller last batch of an epoch is left out in
    training, and used in evaluation and prediction. The order is the loader's own; nothing shuffles it.

    A run is continued with `get_state` and `set_state` of the loader's iterator, if it has them, as those of
    grain do. Otherwise the batches that were used are read again and skipped.

    Raises:
      ExamplesError: The loader cannot be iterated over twice.

    Example:
      >>> loader = [{"x": np.zeros((16, 4))}, {"x": np.ones((16, 4))}]
      >>> sharding = mw.Layout(mw.make_mesh("data=8")).batch_sharding
      >>> with mw.batches(mw.data.Batched(loader), 16, sharding, epochs=1) as data:
      ...     [batch["x"].shape for batch in data]
      [(16, 4), (16, 4)]
    """

    # The loader may differ between processes, so the `repr` that these compare leaves it out.
    loader: Any = field(repr=False)
    """An iterable of batches, such as a DataLoader; a function of the epoch, or of nothing, that returns
    one; or an iterator with `get_state` and `set_state`, which is read once."""
    shapes: Sequence[PyTree] = ()
    """Batches, as arrays or `jax.ShapeDtypeStruct`s, of every shape that may follow besides that of the
    first: the step is compiled for them before it starts. Required in a run of several processes.
    """
    rows: Literal["all", "local"] = "all"
    """Rows that an item has in a run of several processes.

    "all": the rows of the global batch, the same on all
    processes; each process takes the rows of its devices. "local": only the rows of this process's devices,
    in the order of `mw.data.local_rows`. Then each process reads its own examples, all processes wait for
    each other before each batch, and a run can only be continued with the same number of processes.
    """

    def __post_init__(self) -> None:
        if isinstance(self.loader, Mapping | str) or not (
            callable(self.loader) or isinstance(self.loader, Iterable)
        ):
            raise ExamplesError(
                f"mw.data.Batched takes a loader that yields batches; found {type(self.loader).__name__}.\n"
                "  Pass a mapping of arrays without mw.data.Batched."
            )
        if self.rows not in ("all", "local"):
            raise ExamplesError(f"mw.data.Batched: rows={self.rows!r}; it must be 'all' or 'local'.")
        if not callable(self.loader):
            check_readable_again(self.loader)

    def of_size(self, item: Any, num_rows: int | None, number: int) -> PyTree:
        """Return an item as a pytree of NumPy arrays, with at most `num_rows` rows.

        Args:
          item: An item of the loader.
          num_rows: Most rows; None allows any number.
          number: Number of the item in its epoch, for errors.

        Raises:
          ExamplesError: The item is not a batch, or has more rows.
        """
        try:
            batch = as_arrays(item)
        except ValueError as error:
            raise ExamplesError(f"item {number} of the loader is not a batch of arrays: {error}.") from None
        lengths = {x.shape[:1] for x in jax.tree.leaves(batch)}
        if len(lengths) != 1 or lengths == {()}:
            raise ExamplesError(
                f"item {number} of the loader is not a batch: the first dimensions of its arrays are "
                f"{sorted(lengths) or 'missing'}, and must be equal.\n  Leave out mw.data.Batched if the "
                "items are single examples."
            )
        (num_found,) = lengths.pop()
        if num_rows is not None and num_found > num_rows:
            local = " of this process" if self.rows == "local" else ""
            raise ExamplesError(
                f"item {number} of the loader has {num_found} examples, but a batch{local} has {num_rows}.\n"
                "  Give the loader and the run the same batch size."
            )
        check_numbers(batch)
        return batch


class Once:
    """An iterator with `get_state` and `set_state`; each reading begins at its first position."""

    def __init__(self, iterator: Any):
        self._iterator, self._begin = iterator, iterator.get_state()
        self._lock, self._newest = threading.Lock(), 0

    def __iter__(self) -> "_Reading":
        with self._lock:
            self._newest += 1
            self._iterator.set_state(self._begin)
            return _Reading(self, self._newest)

    def stand(self, state: Any) -> None:
        """End all readings, and set the iterator to `state`; None is its first position."""
        with self._lock:
            self._newest += 1
            self._iterator.set_state(self._begin if state is None else state)

    def do(self, reading: int, act: Callable[[Any], Any]) -> list[Any]:
        """Return the result of `act(iterator)` in a list; an empty list if this reading has ended."""
        with self._lock:
            # Threads of an earlier reading may still run: they get nothing, and move nothing on.
            return [act(self._iterator)] if reading == self._newest else []


@dataclass(frozen=True)
class _Reading:
    """A pass over a `Once`."""

    once: Once
    number: int

    def __iter__(self) -> "_Reading":
        return self

    def __next__(self) -> Any:
        for item in self.once.do(self.number, next):
            return item
        raise StopIteration

    def get_state(self) -> Any:
        return next(iter(self.once.do(self.number, lambda iterator: iterator.get_state())), None)

    def set_state(self, state: Any) -> None:
        self.once.do(self.number, lambda iterator: iterator.set_state(state))


class Cursor:
    """An iterator over the items of one epoch, some of which were read before a restart."""

    def __init__(self, items: Any, state: Any, num_read: int, noun: str):
        self._iterator: Iterator[Any] = iter(items)
        self._has_state = is_stateful(self._iterator)
        if state is not None and self._has_state:
            self._iterator.set_state(state)  # type: ignore[attr-defined]
            return
        # An iterator without a state reads the used items again.
        skipped = sum(1 for _ in islice(self._iterator, num_read))
        if skipped < num_read:
            raise InputError(
                f"the data changed since the checkpoint: {num_read} {noun} were read then, but there are "
                f"only {skipped} now.\n  Restore the same data, or start a new run."
            )

    def take(self, num_items: int) -> list[Any]:
        """Return the next items, fewer at the end."""
        return list(islice(self._iterator, num_items))

    @property
    def state(self) -> Any:
        """State of the iterator after the items taken last, or None if it has none."""
        return self._iterator.get_state() if self._has_state else None  # type: ignore[attr-defined]


def is_stateful(iterator: Any) -> bool:
    """Return whether an iterator has `get_state` and `set_state`."""
    return hasattr(iterator, "get_state") and hasattr(iterator, "set_state")


def check_readable_again(items: Any) -> None:
    """Raise an `ExamplesError` for an iterator that can be read only once and has no state."""
    if isinstance(items, Iterator) and not is_stateful(items):
        raise ExamplesError(
            f"an iterator of type {type(items).__name__} can be read only once, so a run could not be "
            "continued.\n"
            "  Give a function that makes it: `lambda: ...`, or `lambda epoch: ...`. (An iterator with "
            "get_state and set_state is accepted as it is.)"
        )


def as_arrays(item: Any) -> PyTree:
    """Return a loader's item with every value that NumPy can read as a NumPy array.

    A list of arrays, as PyTorch makes of pairs, becomes a tuple; a list of numbers becomes an array.
    """
    if isinstance(item, Mapping):
        return {name: as_arrays(x) for name, x in item.items()}
    if isinstance(item, tuple) or (isinstance(item, list) and item and all(map(_is_whole, item))):
        parts = [as_arrays(x) for x in item]
        return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    return jax.tree.map(np.asarray, item, is_leaf=lambda x: isinstance(x, list))


def _is_whole(x: Any) -> bool:
    return isinstance(x, Mapping | tuple) or len(getattr(x, "shape", ())) > 0
