"""Every example once, in order, in batches of one shape: for evaluation and prediction."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from meshwright import process
from meshwright.errors import ExamplesError
from meshwright.input._ahead import read_ahead
from meshwright.input._collate import Collate
from meshwright.input._device import local_rows, placing
from meshwright.input._protocol import Source
from meshwright.input._samples import by_epoch, iterated
from meshwright.input._source import as_source, is_indexed, num_examples, num_threads_for, read
from meshwright.tree import PyTree


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
    length = num_examples(examples)
    several = process.is_of_all(sharding.mesh.devices.flat)
    if several:
        process.compare(
            "the examples of an evaluation or prediction", lambda: _said(length, start, batch_size)
        )
    tasks = (
        (partial(read, [(source, first + np.minimum(rows, len(ids) - 1))], collate), ids)
        for source, first, ids in _stretches(examples, batch_size, start)
    )
    batches = read_ahead(tasks, num_threads)
    for batch, ids in _in_step(batches) if several and length is None else batches:
        yield place(batch), ids


def _said(length: int | None, start: int, batch_size: int) -> dict[str, str]:
    number = "known at the end" if length is None else str(length)
    return {"number of examples": number, "start": str(start), "batch_size": str(batch_size)}


def _in_step(batches: Iterator[tuple[PyTree, range]]) -> Iterator[tuple[PyTree, range]]:
    """Yield `batches`, and before each see that all processes have one: who has more would wait for ever."""
    for pair in itertools.chain(batches, [None]):
        said = "none are left" if pair is None else f"{pair[1].start} to {pair[1].stop - 1}"
        process.compare("the examples of an evaluation or prediction", lambda said=said: {"next": said})
        if pair is not None:
            yield pair


def _stretches(examples: Any, batch_size: int, first: int) -> Iterator[tuple[Source, int, range]]:
    """Yield a source, where in it a batch begins, and the numbers of the batch's examples."""
    if callable(examples) and not is_indexed(examples):
        examples = by_epoch(examples)(0)
        if not is_indexed(examples):
            yield from _pulled(iterated(examples), batch_size, first)
            return
    if num_examples(examples) == 0:
        return
    source = as_source(examples)
    for start in range(first, len(source), batch_size):
        yield source, start, range(start, min(start + batch_size, len(source)))


def _pulled(examples: Iterator[Any], batch_size: int, first: int) -> Iterator[tuple[Source, int, range]]:
    start = sum(1 for _ in itertools.islice(examples, first))
    while pulled := list(itertools.islice(examples, batch_size)):
        yield pulled, 0, range(start, start + len(pulled))
        start += len(pulled)
