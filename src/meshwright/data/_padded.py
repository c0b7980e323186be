"""Every example once, in order, in batches of one shape: for evaluation and prediction."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from meshwright.base._internal import PyTree
from meshwright.data._batched import Batched, Cursor
from meshwright.data._bucketed import Bucketed
from meshwright.data._collate import Collate
from meshwright.data._device import local_rows, placing
from meshwright.data._kinds import by_epoch, check_not_batched, is_indexed, iterated
from meshwright.data._reading import in_step, read_ahead, reader
from meshwright.data._source import Arrays, Part, as_source, num_examples, num_threads_for
from meshwright.data._stretches import Iterated
from meshwright.errors import ExamplesError, InputError
from meshwright.processes import _internal as processes


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
        # Rows past the last example repeat it, so that all batches have one shape.
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
    while items_read := cursor.take(1):
        batch = Arrays(batched.of_size(items_read[0], num_rows, number))
        size = size if was_smaller else len(batch)
        if was_smaller or (is_local and len(batch) < num_rows):
            raise ExamplesError(
                f"batch {number - was_smaller} of the loader has {size} examples, and {num_rows} were "
                "expected.\n  Give the loader's own batch size, batch_size=…. Only the last batch may be "
                "smaller, and none if rows='local'."
            )
        local = np.arange(num_rows) if is_local else rows
        count = batch_size if is_local else len(batch)
        yield Part(batch, np.minimum(local, len(batch) - 1)), range(start, start + count)
        was_smaller, start, number = len(batch) < num_rows, start + count, number + 1


_ABOUT = "the examples of an evaluation or prediction"


def padded_batches(
    examples: Any,
    batch_size: int,
    sharding: NamedSharding,
    *,
    collate: Collate | None = None,
    num_threads: int | None = None,
) -> Iterator[tuple[PyTree, np.ndarray | jax.Array]]:
    """Yield `(batch, weights)` over all `examples`, once and in order, as `Evaluator` takes them.

    The last batch is filled with copies of the last example.

    Args:
      examples: As for `batches`; a function of the epoch gets epoch 0.
      batch_size: Number of examples in a batch, over all processes.
      sharding: Split of the batch, `Layout.batch_sharding`.
      collate: As for `batches`.
      num_threads: As for `batches`.

    Yields:
      A global batch, and float32[batch_size]: 1 for an example that counts, 0 for a filler.

    Raises:
      LayoutError: The mesh does not divide `batch_size`.
      ExamplesError: There are no examples.

    Example:
      >>> sharding = mw.Layout(mw.make_mesh("data=8")).batch_sharding
      >>> for batch, weights in mw.data.padded_batches(np.arange(10), 8, sharding):
      ...     int(weights.sum())
      8
      2
    """
    rows, to_global = local_rows(batch_size, sharding), placing(batch_size, sharding)
    numbered = numbered_batches(examples, batch_size, sharding, collate=collate, num_threads=num_threads)
    ids = range(0)
    for batch, ids in numbered:
        yield batch, to_global((rows < len(ids)).astype(np.float32))
    if not ids:
        raise ExamplesError("there are no examples to evaluate on.")


def numbered_batches(
    examples: Any,
    batch_size: int,
    sharding: NamedSharding,
    *,
    collate: Collate | None = None,
    num_threads: int | None = None,
    start: int = 0,
) -> Iterator[tuple[PyTree, range]]:
    """Yield `(batch, ids)` over all `examples`, once and in order: for prediction.

    The last batch is filled with copies of the last example. There may be no examples.

    Args:
      examples: As for `batches`; a function of the epoch gets epoch 0.
      batch_size: Number of examples in a batch, over all processes.
      sharding: Split of the batch, `Layout.batch_sharding`.
      collate: As for `batches`.
      num_threads: As for `batches`.
      start: Number of the first example; earlier ones are left out.

    Yields:
      A global batch, and the numbers of its examples, which are its first `len(ids)` rows.

    Raises:
      LayoutError: The mesh does not divide `batch_size`.
      ExamplesError: The examples cannot be read.

    Example:
      >>> sharding = mw.Layout(mw.make_mesh("data=8")).batch_sharding
      >>> [ids for batch, ids in mw.data.numbered_batches(np.arange(10), 8, sharding)]
      [range(0, 8), range(8, 10)]
    """
    rows, to_global = local_rows(batch_size, sharding), placing(batch_size, sharding)
    num_threads = num_threads_for(examples, collate) if num_threads is None else num_threads
    length, read = num_examples(examples), reader(examples, collate)
    several = processes.spans_all_processes(sharding.mesh.devices.flat)
    if several:
        processes.compare(_ABOUT, lambda: _agreed_facts(length, start, batch_size))
    tasks = ((partial(read, [part]), ids) for part, ids in ordered(examples, batch_size, rows, start))
    batches = read_ahead(tasks, num_threads)
    # A process that cannot read a batch would leave the others waiting in a collective program.
    if several:
        batches = in_step(batches, _ABOUT, lambda pair: f"{pair[1].start} to {pair[1].stop - 1}")
    for batch, ids in batches:
        yield to_global(batch), ids


def _agreed_facts(length: int | None, start: int, batch_size: int) -> dict[str, str]:
    number = "known at the end" if length is None else str(length)
    return {"number of examples": number, "start": str(start), "batch_size": str(batch_size)}


def batch_size_of(examples: Any, batch_size: int) -> int:
    """Return the batch size of a loader that says it, as a `DataLoader` does; else `batch_size`.

    Example:
      >>> mw.data._internal.batch_size_of([1, 2, 3], 256)
      256
    """
    is_whole = isinstance(examples, Batched) and examples.rows == "all"
    own = getattr(examples.loader, "batch_size", None) if is_whole else None
    return own if type(own) is int and own > 0 else batch_size


def some_rows(
    examples: Any, batch_size: int, sharding: NamedSharding | None = None, collate: Collate | None = None
) -> PyTree:
    """Return the first example in a batch of its own, padded as in the first batch.

    Example:
      >>> mw.data._internal.some_rows([{"x": [1, 2, 3]}], 8)["x"].shape
      (1, 3)
    """
    read, first = reader(examples, collate), np.zeros(1, np.int64)
    if isinstance(examples, Batched) and sharding is None:
        for example in each_example(examples):
            return jax.tree.map(lambda x: x[None], example)
    else:
        is_loader = isinstance(examples, Batched)
        rows = local_rows(batch_size, sharding) if is_loader and sharding else first
        for part, _ in list(islice(ordered(examples, batch_size, rows, 0), 1 + is_loader)):
            return read([part._replace(ids=first)])
    raise ExamplesError("there are no examples: the source's length is 0, or the loader has no batches.")
