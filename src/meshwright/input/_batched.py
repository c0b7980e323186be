"""Batches that a loader of anybody's has made already, and iterators that know where they stand."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import jax
import numpy as np

from meshwright.docstrings import documented
from meshwright.errors import ExamplesError, InputError
from meshwright.input._collate import check_numbers
from meshwright.tree import PyTree


@documented
@dataclass(frozen=True)
class Batched:
    """A loader whose items are batches already: `mw.Batched(DataLoader(dataset, batch_size=32))`.

    It goes wherever examples go, and is told the same batch size as the loader. An item is a pytree of
    arrays, tensors or lists of numbers, whose first dimensions run over the examples. A last batch of an
    epoch that is smaller is left out in training; evaluation and prediction use it too. The order is the
    loader's own; nothing shuffles it.

    A run is continued by `get_state` and `set_state` of the loader's iterator, where it has them, as those
    of grain have; otherwise the batches that were used are read again and skipped.

    Raises:
      ExamplesError: the loader cannot be iterated over twice.
    """

    loader: Any = field(repr=False)  # of which each process may have another
    """What `iter` gives a new iterator of, as a DataLoader; or a function, of the epoch or of nothing, that
    returns such a thing; or an iterator with `get_state` and `set_state`, which is read once."""
    shapes: Sequence[PyTree] = ()
    """Batches, as arrays or `jax.ShapeDtypeStruct`s, of every other shape than the first one's that may come:
    the step is compiled for them before it starts. Several processes need it, one alone need not."""
    rows: Literal["all", "local"] = "all"
    """The rows that an item has on each of several processes. "all": those of the global batch, the same on
    all processes, of which each takes what its devices hold. "local": those that this process's devices
    hold, in the order of `mw.input.local_rows`; then each process reads examples of its own, before each
    batch all wait until each has one, and a run is continued by as many processes."""

    def __post_init__(self) -> None:
        if isinstance(self.loader, Mapping | str) or not (
            callable(self.loader) or isinstance(self.loader, Iterable)
        ):
            raise ExamplesError(
                f"mw.Batched takes a loader, which gives batch after batch; found "
                f"{type(self.loader).__name__}.\n  A mapping of arrays is given as it is."
            )
        if self.rows not in ("all", "local"):
            raise ExamplesError(f"mw.Batched: rows={self.rows!r}; it must be 'all' or 'local'.")
        if not callable(self.loader):
            check_readable_again(self.loader)

    def of_size(self, item: Any, num_rows: int | None, number: int) -> PyTree:
        """Return an item as a pytree of NumPy arrays, of `num_rows` rows or fewer; of any number if None.

        Args:
          number: of the item in its epoch, for errors.

        Raises:
          ExamplesError: it is no batch, or a larger one.
        """
        try:
            batch = as_arrays(item)
        except ValueError as error:
            raise ExamplesError(f"item {number} of the loader is no batch of arrays: {error}.") from None
        lengths = {x.shape[:1] for x in jax.tree.leaves(batch)}
        if len(lengths) != 1 or lengths == {()}:
            raise ExamplesError(
                f"item {number} of the loader is no batch: the first dimensions of its arrays are "
                f"{sorted(lengths) or 'not there'}, and must be equal.\n  Leave out mw.Batched if the items "
                "are single examples."
            )
        (found,) = lengths.pop()
        if num_rows is not None and found > num_rows:
            local = " of this process" if self.rows == "local" else ""
            raise ExamplesError(
                f"item {number} of the loader has {found} examples, and a batch{local} {num_rows}.\n"
                "  Give the loader and the run one batch size."
            )
        check_numbers(batch)
        return batch


class Once:
    """An iterator with `get_state` and `set_state`, which begins again where it stood when it was given."""

    def __init__(self, iterator: Any):
        self._iterator, self._begin = iterator, iterator.get_state()
        self._lock, self._newest = threading.Lock(), 0

    def __iter__(self) -> "_Reading":
        with self._lock:
            self._newest += 1
            self._iterator.set_state(self._begin)
            return _Reading(self, self._newest)

    def stand(self, state: Any) -> None:
        """End all readings, and let the iterator stand at `state`; None is where it stood at first."""
        with self._lock:
            self._newest += 1
            self._iterator.set_state(self._begin if state is None else state)

    def do(self, reading: int, act: Callable[[Any], Any]) -> list[Any]:
        """Return what `act(iterator)` returned; nothing for a reading, perhaps a thread's, that is over."""
        with self._lock:
            return [act(self._iterator)] if reading == self._newest else []


@dataclass(frozen=True)
class _Reading:
    """One pass over a `Once`."""

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
    """An iterator over the items of one epoch, of which some were read before a restart.

    Args:
      state: of the iterator after those, or None.
      num_read: so many are skipped where there is no state, or the iterator takes none.

    Raises:
      InputError: there are fewer.
    """

    def __init__(self, items: Any, state: Any, num_read: int, what: str):
        self._iterator: Iterator[Any] = iter(items)
        self._has_state = is_stateful(self._iterator)
        if state is not None and self._has_state:
            self._iterator.set_state(state)  # type: ignore[attr-defined]
            return
        skipped = sum(1 for _ in islice(self._iterator, num_read))
        if skipped < num_read:
            raise InputError(
                f"the data changed since the checkpoint: {num_read} {what} were read then, and now it has "
                f"{skipped}.\n  Give back the same data, or start a new run."
            )

    def take(self, num_items: int) -> list[Any]:
        """Return the next items, fewer at the end."""
        return list(islice(self._iterator, num_items))

    @property
    def state(self) -> Any:
        """The state of the iterator after what was taken last, or None if it has none."""
        return self._iterator.get_state() if self._has_state else None  # type: ignore[attr-defined]


def is_stateful(iterator: Any) -> bool:
    """Return whether an iterator can say where it stands, and be told."""
    return hasattr(iterator, "get_state") and hasattr(iterator, "set_state")


def check_readable_again(items: Any) -> None:
    """Raise an `ExamplesError` for an iterator that can be read once, and not continued."""
    if isinstance(items, Iterator) and not is_stateful(items):
        raise ExamplesError(
            f"a {type(items).__name__} can be read once, so that a run could not be continued.\n"
            "  Give the function that makes it: `lambda: ...`, or `lambda epoch: ...`. (An iterator that has "
            "get_state and set_state is taken as it is.)"
        )


def as_arrays(item: Any) -> PyTree:
    """Return a loader's item with all that NumPy can read as NumPy arrays.

    A list of arrays, which PyTorch makes of pairs, becomes a tuple; one of numbers becomes an array.
    """
    if isinstance(item, Mapping):
        return {name: as_arrays(x) for name, x in item.items()}
    if isinstance(item, tuple) or (isinstance(item, list) and item and all(map(_is_whole, item))):
        parts = [as_arrays(x) for x in item]
        return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    return jax.tree.map(np.asarray, item, is_leaf=lambda x: isinstance(x, list))


def _is_whole(x: Any) -> bool:
    return isinstance(x, Mapping | tuple) or len(getattr(x, "shape", ())) > 0
