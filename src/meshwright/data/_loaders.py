"""Recognition of other libraries' loaders by their attributes, since none of those libraries is imported.

If a loader of batches is given as if its items were examples, the batches would be stacked to batches of
batches. So loaders that are known to make batches are refused, with the correct call in the error.
"""

from collections.abc import Iterator
from typing import Any

from meshwright.errors import ExamplesError

_LIBRARIES = ("grain", "tensorflow")
_ABOVE = ("_parents", "_input_dataset", "_operations")
"""Attributes in which data sets of these libraries keep the data sets that they were made from."""
_UNDO = ("unbatch", "flatmap", "flat_map", "interleave")
"""Operations after which items are examples again, or may be."""


def check_not_batched(examples: Any) -> None:
    """Check that the items of `examples` are not known to be batches."""
    found = makes_batches(examples)
    if found:
        raise ExamplesError(
            f"the items of {type(examples).__name__} are already batches ({found}), and would be stacked to "
            "batches of batches.\n  Wrap it, mw.data.Batched(loader), with the same batch size; or let it "
            "yield single examples: no `.batch(...)`, or DataLoader(..., batch_size=None)."
        )


def makes_batches(examples: Any) -> str | None:
    """Return the setting that batches the examples, as text; None if none is known."""
    if getattr(examples, "_auto_collation", False) is True:  # a DataLoader, or its iterator
        return f"batch_size={getattr(examples, 'batch_size', None)}"
    return next(_batching(examples, 0), None)


def _batching(examples: Any, depth: int) -> Iterator[str]:
    kind = type(examples)
    name = kind.__name__.lower()
    if depth > 50 or kind.__module__.partition(".")[0] not in _LIBRARIES or any(x in name for x in _UNDO):
        return
    if "batch" in name:
        yield kind.__name__
        return
    for attribute in _ABOVE:
        above = getattr(examples, attribute, None)
        for each in above if isinstance(above, list | tuple) else (above,):
            yield from _batching(each, depth + 1)
