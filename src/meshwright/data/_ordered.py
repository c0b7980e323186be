"""All examples of any kind once, in their own order: for evaluation, prediction and metrics."""

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from meshwright.base._internal import PyTree
from meshwright.data._batched import Batched, Cursor
from meshwright.data._bucketed import Bucketed
from meshwright.data._kinds import by_epoch, check_not_batched, is_indexed, iterated
from meshwright.data._source import Arrays, Part, as_source, num_examples
from meshwright.data._stretches import Iterated
from meshwright.errors import ExamplesError, InputError


def ordered(examples: Any, batch_size: int, rows: np.ndarray, start: int) -> Iterator[tuple[Part, range]]:
    """Yield the parts to read for each batch, and the numbers of its examples, from example `start` on.

    A last batch that is not full is filled with its last example. A function of the epoch gets epoch 0.
    """
    items = first_epoch(examples)
    if isinstance(examples, Batched):
        yield from _of_loader(examples, items, batch_size, rows, start)
    elif is_indexed(items):
        yield from _of_source(items, batch_size, rows, start)
    else:
        yield from _of_iterable(items, batch_size, rows, start)


def each_example(examples: Any) -> Iterator[PyTree]:
    """Yield all examples once, in order; for a loader of batches, their rows.

    Example:
      >>> list(mw.data._internal.each_example(lambda: [1, 2, 3]))
      [1, 2, 3]
    """
    items = first_epoch(examples)
    if not isinstance(examples, Batched):
        source = as_source(items) if is_indexed(items) else None
        yield from items if source is None else (source[i] for i in range(len(source)))
        return
    for number, item in enumerate(items):
        batch = examples.of_size(item, None, number)
        for row in range(len(jax.tree.leaves(batch)[0])):
            yield jax.tree.map(lambda x, row=row: x[row], batch)


def first_epoch(examples: Any) -> Any:
    """Return an object to iterate over, or to index, that has all examples or a loader's batches."""
    items = examples.loader if isinstance(examples, Batched) else examples
    if callable(items) and not is_indexed(items):
        return iterated(by_epoch(items)(0))
    if isinstance(items, Iterator):
        raise ExamplesError(
            f"an iterator of type {type(items).__name__} can be read only once, but an evaluation reads all "
            "examples each time.\n  Give a function that makes it: `lambda: ...`."
        )
    return items if isinstance(items, Iterable) else as_source(items)


def _of_source(items: Any, batch_size: int, rows: np.ndarray, first: int) -> Iterator[tuple[Part, range]]:
    if num_examples(items) == 0:
        return
    source = as_source(items)
    for start in range(first, len(source), batch_size):
        ids = range(start, min(start + batch_size, len(source)))
        length = source.length_of(np.arange(ids.start, ids.stop)) if isinstance(source, Bucketed) else None
        yield Part(source, start + np.minimum(rows, len(ids) - 1), length=length), ids


def _of_iterable(items: Any, batch_size: int, rows: np.ndarray, start: int) -> Iterator[tuple[Part, range]]:
    check_not_batched(items)
    stretch = Iterated(iterated(items), 0, start, None, (0, 0))
    while True:
        count, part = stretch.take(batch_size, rows)
        if not count:
            return
        yield part._replace(ids=np.minimum(rows, count - 1)), range(start, start + count)
        start += count


def _of_loader(
    batched: Batched, items: Any, batch_size: int, rows: np.ndarray, start: int
) -> Iterator[tuple[Part, range]]:
    if start % batch_size:
        raise InputError(
            f"{start} examples were done before, which is not a whole number of batches of {batch_size}.\n"
            "  Continue with the batch size that was used before."
        )
    is_local = batched.rows == "local"
    num_rows, number = len(rows) if is_local else batch_size, start // batch_size
    cursor, was_smaller, size = Cursor(items, None, number, "batches"), False, 0
    while taken := cursor.take(1):
        batch = Arrays(batched.of_size(taken[0], num_rows, number))
        size = size if was_smaller else len(batch)
        if was_smaller or (is_local and len(batch) < num_rows):
            raise ExamplesError(
                f"batch {number - was_smaller} of the loader has {size} examples, and {num_rows} were "
                "expected.\n  Give the loader's own batch size, batch_size=…. Only the last batch may be "
                "smaller, and none if rows='local'."
            )
        here = np.arange(num_rows) if is_local else rows
        count = batch_size if is_local else len(batch)
        yield Part(batch, np.minimum(here, len(batch) - 1)), range(start, start + count)
        was_smaller, start, number = len(batch) < num_rows, start + count, number + 1
