"""What an input is to the rest: examples one can index, and an iterator with a bookmark."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from meshwright.tree import PyTree


class Source(Protocol):
    """Examples in any order: a list, a memory map, an Arrow table, a folder of files.

    A source may also have `__getitems__(ids)`, which is then used instead of one call an example.
    It returns a list of examples, or, cheaper by far, a batch: a pytree of arrays whose first
    dimension runs over `ids`.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> PyTree: ...


@runtime_checkable
class VectorSource(Protocol):
    """A source that fetches many examples at once."""

    def __getitems__(self, ids: Sequence[int], /) -> PyTree: ...


@runtime_checkable
class DataIterator(Protocol):
    """What `mw.fit` takes batches from. grain's iterators are some, too.

    A checkpoint holds the state of each process's iterator, and can be resumed by as many processes. Where
    the state is the same on all of them and holds good for any number, `state_is_global = True` says so.
    One with a method `facts()`, which returns texts by name, is compared by them before a run begins.
    """

    def __next__(self) -> PyTree: ...

    def get_state(self) -> dict[str, Any]:
        """Return the position just after the batch last returned, as JSON-able values."""
        ...

    def set_state(self, state: dict[str, Any], /) -> None:
        """Continue from a position that `get_state` gave, perhaps in another process."""
        ...
