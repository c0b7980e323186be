"""The kinds of examples that users give, recognised without importing the libraries that they come from.

They are indexed, a function of the epoch, an iterable or an iterator. If a loader of batches is given as if
its items were examples, the batches would be stacked to batches of batches. So loaders that are known to make
batches are refused, with the correct call in the error.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from meshwright.base._internal import PyTree
from meshwright.errors import ExamplesError

_GATHERING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def is_indexed(examples: Any) -> bool:
    """Return whether `examples` have a length and can be indexed, so that they can be read in any order.

    Example:
      >>> mw.data._internal.is_indexed([1, 2]), mw.data._internal.is_indexed(iter([1, 2]))
      (True, False)
    """
    # PyTorch's IterableDataset has both methods, but one of them always raises.
    is_iterated = any(kind.__name__ == "IterableDataset" for kind in type(examples).__mro__)
    return hasattr(examples, "__len__") and hasattr(examples, "__getitem__") and not is_iterated


def by_epoch(examples: Callable[..., Any]) -> Callable[[int], Any]:
    """Return a function of the epoch, made of a function that takes the epoch or nothing.

    Example:
      >>> mw.data._internal.by_epoch(lambda: [1, 2])(0)
      [1, 2]
    """
    required = [
        parameter.name
        for parameter in inspect.signature(examples).parameters.values()
        if parameter.default is parameter.empty and parameter.kind not in _GATHERING
    ]
    if len(required) > 1:
        raise ExamplesError(
            f"a function that returns examples takes the epoch or nothing; this one requires {required}.\n"
            "  Bind the other arguments: functools.partial(function, ...)."
        )
    return examples if required else lambda epoch: examples()


def iterated(examples: Any) -> Iterable[Any]:
    """Return the result of a function of the epoch, if it is iterable."""
    if not isinstance(examples, Iterable):
        raise ExamplesError(
            f"the function that returns examples returned a value of type {type(examples).__name__}.\n"
            "  Return an iterable of examples, or an object with __len__ and __getitem__."
        )
    return examples


def takes(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function has a parameter with this name; False for C functions without a signature."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


_LIBRARIES = ("grain", "tensorflow")
# Attributes in which data sets of these libraries keep the data sets that they were made from.
_ABOVE = ("_parents", "_input_dataset", "_operations")
# Operations after which items are examples again, or may be.
_UNDO = ("unbatch", "flatmap", "flat_map", "interleave")


def check_not_batched(examples: Any) -> None:
    """Check that the items of `examples` are not known to be batches."""
    setting = makes_batches(examples)
    if setting:
        raise ExamplesError(
            f"the items of {type(examples).__name__} are already batches ({setting}), and would be stacked "
            "to batches of batches.\n  Wrap it, mw.data.Batched(loader), with the same batch size; or let it "
            "yield single examples: no `.batch(...)`, or DataLoader(..., batch_size=None)."
        )


def makes_batches(examples: Any) -> str | None:
    """Return the setting that batches the examples, as text; None if none is known."""
    # A DataLoader of PyTorch, or its iterator.
    if getattr(examples, "_auto_collation", False) is True:
        return f"batch_size={getattr(examples, 'batch_size', None)}"
    return next(_batching(examples, 0), None)


def _batching(examples: Any, depth: int) -> Iterator[str]:
    kind = type(examples)
    name = kind.__name__.lower()
    # Data sets of grain and TensorFlow are chains. A batching anywhere in the chain counts, up to an
    # operation that undoes it.
    if depth > 50 or kind.__module__.partition(".")[0] not in _LIBRARIES or any(x in name for x in _UNDO):
        return
    if "batch" in name:
        yield kind.__name__
        return
    for attribute in _ABOVE:
        above = getattr(examples, attribute, None)
        for parent in above if isinstance(above, list | tuple) else (above,):
            yield from _batching(parent, depth + 1)


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
