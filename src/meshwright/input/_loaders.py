"""Other libraries' loaders, told by their attributes, since none of those libraries is imported.

A loader of batches that is given as if its items were examples would be stacked once more, to batches of
batches. So what says of itself that it makes batches is refused, with what to write instead.
"""

from collections.abc import Iterator
from typing import Any

from meshwright.errors import ExamplesError

_LIBRARIES = ("grain", "tensorflow")
_ABOVE = ("_parents", "_input_dataset", "_operations")
"""Where data sets of these libraries keep what they were made from."""
_UNDO = ("unbatch", "flatmap", "flat_map", "interleave")
"""After these, items are examples again, or may be."""


def check_not_batched(examples: Any) -> None:
    """Check that the items of `examples` are not known to be batches.

    Raises:
      ExamplesError: they are those of a PyTorch DataLoader, of grain's `.batch` or of tf.data's.
    """
    found = makes_batches(examples)
    if found:
        raise ExamplesError(
            f"the items of {type(examples).__name__} are batches already ({found}), and would be stacked to "
            "batches of batches.\n  Say so, mw.Batched(loader), with the same batch size; or let it give "
            "single examples: no `.batch(...)`, or DataLoader(..., batch_size=None)."
        )


def makes_batches(examples: Any) -> str | None:
    """Return what makes batches of the examples, or None where nothing is known to."""
    if getattr(examples, "_auto_collation", False) is True:  # a DataLoader's, and its iterators'
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
