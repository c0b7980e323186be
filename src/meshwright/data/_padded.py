"""Every example once, in order, in batches of one shape: for evaluation and prediction."""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from meshwright.base._internal import PyTree
from meshwright.data._batched import Batched
from meshwright.data._collate import Collate
from meshwright.data._device import local_rows, placing
from meshwright.data._ordered import each_example, ordered
from meshwright.data._prefetch import in_step, read_ahead
from meshwright.data._reading import reader
from meshwright.data._source import num_examples, num_threads_for
from meshwright.errors import ExamplesError
from meshwright.processes import _internal as processes

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
    rows, place = local_rows(batch_size, sharding), placing(batch_size, sharding)
    numbered = numbered_batches(examples, batch_size, sharding, collate=collate, num_threads=num_threads)
    ids = range(0)
    for batch, ids in numbered:
        yield batch, place((rows < len(ids)).astype(np.float32))
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
    rows, place = local_rows(batch_size, sharding), placing(batch_size, sharding)
    num_threads = num_threads_for(examples, collate) if num_threads is None else num_threads
    length, read = num_examples(examples), reader(examples, collate)
    several = processes.spans_all_processes(sharding.mesh.devices.flat)
    if several:
        processes.compare(_ABOUT, lambda: _said(length, start, batch_size))
    tasks = ((partial(read, [part]), ids) for part, ids in ordered(examples, batch_size, rows, start))
    batches = read_ahead(tasks, num_threads)
    if several:  # a process that cannot read a batch would leave the others in a program of all
        batches = in_step(batches, _ABOUT, lambda pair: f"{pair[1].start} to {pair[1].stop - 1}")
    for batch, ids in batches:
        yield place(batch), ids


def _said(length: int | None, start: int, batch_size: int) -> dict[str, str]:
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
