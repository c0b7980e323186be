"""Protocols of an input: examples that can be indexed, and an iterator with a state."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from meshwright.base._internal import PyTree


class Source(Protocol):
    """Examples that can be read in any order: a list, a memory map, an Arrow table, a folder of files.

    A source may also have `__getitems__(ids)`, which then replaces one call per example. It returns a list of
    examples or, much cheaper, a batch: a pytree of arrays whose first dimension runs over `ids`.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> PyTree: ...


@runtime_checkable
class VectorSource(Protocol):
    """A source that fetches many examples at once."""

    def __getitems__(self, ids: Sequence[int], /) -> PyTree: ...


@runtime_checkable
class DataIterator(Protocol):
    """An iterator of batches for `mw.fit`, with a state. Iterators of grain are also accepted.

    A checkpoint holds the state of each process's iterator, and the run can be continued with the same number
    of processes. If the state is the same on all processes and valid for any number of them, the iterator has
    `state_is_global = True`. An iterator may have a method `facts()`, which returns texts by name; before a
    run begins, these are compared between processes.
    """

    def __next__(self) -> PyTree: ...

    def get_state(self) -> dict[str, Any]:
        """Return the position just after the batch returned last, as JSON-able values."""
        ...

    def set_state(self, state: dict[str, Any], /) -> None:
        """Continue from a position that `get_state` returned, perhaps in another process."""
        ...
