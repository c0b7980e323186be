"""Every example once, in order, in batches of one shape: for evaluation and prediction."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from meshwright import process
from meshwright.errors import ExamplesError
from meshwright.input._ahead import read_ahead
from meshwright.input._batched import Batched
from meshwright.input._collate import Collate
from meshwright.input._device import local_rows, placing
from meshwright.input._ordered import each_example, ordered
from meshwright.input._reading import reader
from meshwright.input._source import num_examples, num_threads_for
from meshwright.input._together import in_step
from meshwright.tree import PyTree

_ABOUT = "the examples of an evaluation or prediction"


def padded_batches(
    examples: Any,
    batch_size: int,
    sharding: NamedSharding,
    *,
    collate: Collate | None = None,
    num_threads: int | None = None,
) -> Iterator[tuple[PyTree, np.ndarray | jax.Array]]:
    """Yield `(batch, weights)` over all `examples`, once and in order: what an `Evaluator` takes.

    Arguments and what is raised: as `numbered_batches`. The last batch is filled up with copies of the last
    example.

    Yields:
      A global batch, and float32[batch_size]: 1 for an example that counts, 0 for a filler.
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

    The last batch is filled up with copies of the last example. There may be no examples.

    Args:
      examples: as `batches` takes; a function of the epoch is asked for epoch 0.
      start: the number of the first example; those before it are left out.

    The other arguments and what is raised: as `batches`.

    Yields:
      A global batch, and the numbers of its examples, which come first in it: of what is computed of the
      batch, the first `len(ids)` rows are theirs.
    """
    rows, place = local_rows(batch_size, sharding), placing(batch_size, sharding)
    num_threads = num_threads_for(examples, collate) if num_threads is None else num_threads
    length, read = num_examples(examples), reader(examples, collate)
    several = process.is_of_all(sharding.mesh.devices.flat)
    if several:
        process.compare(_ABOUT, lambda: _said(length, start, batch_size))
    tasks = ((partial(read, [part]), ids) for part, ids in ordered(examples, batch_size, rows, start))
    batches = read_ahead(tasks, num_threads)
    if several and length is None:
        batches = in_step(batches, _ABOUT, lambda pair: f"{pair[1].start} to {pair[1].stop - 1}")
    for batch, ids in batches:
        yield place(batch), ids


def _said(length: int | None, start: int, batch_size: int) -> dict[str, str]:
    number = "known at the end" if length is None else str(length)
    return {"number of examples": number, "start": str(start), "batch_size": str(batch_size)}


def some_rows(examples: Any, batch_size: int) -> PyTree:
    """Return the first example, in a batch of its own, padded as it is in the first batch.

    Raises:
      ExamplesError: there is none, or it is no example.
    """
    if isinstance(examples, Batched):
        return jax.tree.map(lambda x: x[None], next(each_example(examples)))
    read = reader(examples, None)
    for part, _ in ordered(examples, batch_size, np.zeros(1, np.int64), 0):
        return read([part])
    raise ExamplesError("there are no examples: the source's length is 0.")
