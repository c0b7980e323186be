"""Global batches from examples, in an order that a number or two describe.

Each process reads only the rows of the batch that its own devices hold; threads read ahead. What
was read ahead is no part of the state: the state is the number of samples *returned*, so it is
true at every moment, and means the same on any number of processes and with any batch size.
"""

import itertools
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Self

import jax
import numpy as np
from jax.sharding import NamedSharding

from meshwright.errors import InputError, UsageError
from meshwright.input._ahead import read_ahead
from meshwright.input._collate import Collate
from meshwright.input._device import local_rows, placing
from meshwright.input._facts import facts_of
from meshwright.input._protocol import Source
from meshwright.input._samples import Position, samples_of, shares
from meshwright.input._source import num_threads_for, read
from meshwright.tree import PyTree


class Batches:
    """An endless (or `epochs` long) iterator of global batches. See `batches`, which makes one."""

    state_is_global = True
    """The same on all processes, and good for any number of them; see `DataIterator`."""

    def __init__(
        self,
        examples: Any,
        batch_size: int,
        *,
        rows: np.ndarray,
        place: Callable[[PyTree], PyTree],
        collate: Collate | None = None,
        seed: int | None,
        epochs: int | None,
        num_threads: int | None,
    ):
        self._samples = samples_of(examples, seed, epochs)
        self._batch_size, self._rows, self._place, self._collate = batch_size, rows, place, collate
        self._num_threads = num_threads_for(examples, collate) if num_threads is None else num_threads
        self._position = Position(0, 0)  # after the batch last returned: the whole state
        self._ahead: Generator[tuple[PyTree, Position], None, None] | None = None
        self._peeked: tuple[PyTree, Position] | None = None
        self._source: Source | None = None  # of the first examples of the batch that is read first
        self._facts: dict[str, str] | None = None
        self.wait_seconds = 0.0
        """How long `__next__` has waited for examples, in all."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PyTree:
        """Return the next global batch: numpy arrays in one process, global jax arrays in several.

        Raises:
          StopIteration: fewer than a whole batch are left of the last epoch.
          ExamplesError: the examples do not stack, or `collate` did not return a batch.
        """
        started = time.perf_counter()
        with jax.profiler.TraceAnnotation("input wait"):  # the name by which `profile` knows it
            batch, self._position = self._peeked or self._read()
        self._peeked = self._source = None
        self.wait_seconds += time.perf_counter() - started
        return self._place(batch)

    def peek(self) -> PyTree:
        """Return this process's rows of the next batch as numpy arrays, and do not move.

        Raises:
          UsageError: there is not one whole batch.
        """
        if self.is_empty() or self._peeked is None:
            raise UsageError(
                f"the examples that are left do not fill one batch of {self._batch_size}; "
                "make the batch smaller or the epochs more."
            )
        return self._peeked[0]

    def is_empty(self) -> bool:
        """Are there no whole batches left? What is read to find out is kept for `next`."""
        try:
            self._peeked = self._peeked or self._read()
        except StopIteration:
            return True
        return False

    def facts(self) -> dict[str, str]:
        """Return what must be the same on all processes, as settings by name, and do not move. Collective.

        That is the position and, told before the first batch is taken, the number of the examples and digests
        of three. Where a function returned an iterable, which is not to be used up, they are of those in one
        batch.
        """
        if self._facts is None:
            self.is_empty()  # reads ahead
            self._facts = facts_of(self._source or [])
        return {**self._facts, "batch_size": str(self._batch_size), "position": str(self.get_state())}

    def get_state(self) -> dict[str, Any]:
        """Return the position after the batch last returned, and what it holds good for."""
        return self._samples.state(self._position)

    def set_state(self, state: dict[str, Any], /) -> None:
        """Continue from `state`, which `get_state` gave.

        Raises:
          InputError: the state is of another seed or another number of examples, so that going on
            would repeat some and leave out others.
        """
        mine = self.get_state()
        changed = [key for key in ("seed", "num_examples") if state.get(key) != mine[key]]
        if changed:
            raise InputError(
                "the data changed since the checkpoint: "
                + ", ".join(f"{key} was {state.get(key)}, is {mine[key]}" for key in changed)
                + ".\n  Continuing would repeat some examples and leave out others. "
                "Give back the same data and seed, or start a new run."
            )
        self._position = Position(int(state.get("epoch", 0)), int(state["samples"]))
        self._forget_ahead()

    def close(self) -> None:
        """Stop the threads. What was read ahead is dropped."""
        self._forget_ahead()

    def _read(self) -> tuple[PyTree, Position]:
        if self._ahead is None:
            self._ahead = self._from(self._position)
        try:
            return next(self._ahead)
        except StopIteration:
            raise
        except BaseException:
            self._forget_ahead()  # so that trying again reads again
            raise

    def _from(self, position: Position) -> Generator[tuple[PyTree, Position], None, None]:
        """Read one batch after the other from `position` on."""
        collate, num_threads = self._collate, self._num_threads  # the generator must not keep `self` alive
        each = shares(self._samples, position, self._batch_size, self._rows)
        first = list(itertools.islice(each, 1))
        self._source = first[0][0][0][0] if first else None
        tasks = (
            (partial(read, [part for part in parts if part[1].size], collate), after)
            for parts, after in itertools.chain(first, each)
        )
        return read_ahead(tasks, num_threads)

    def _forget_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = self._peeked = self._source = None


def batches(
    examples: Any,
    batch_size: int,
    sharding: NamedSharding,
    *,
    collate: Collate | None = None,
    seed: int | None = 0,
    epochs: int | None = None,
    num_threads: int | None = None,
) -> Batches:
    """Return an iterator of global batches of `batch_size` examples, split as `sharding` says.

    The stream of samples runs on over epochs, each in a new order; a batch may hold the end of one
    and the start of the next. What does not fill a batch at the end of the last epoch is left out.

    Args:
      examples: one of

        - a mapping of arrays, or anything with `__len__` and `__getitem__`;
        - a function of the epoch, `epoch -> examples`, counted from 0 and called again where a run
          continues: the same epoch must give the same examples;
        - a function without required arguments that returns a new iterable each time, `() -> iterable`.
          Its order is its own, whatever `seed`; to continue in the middle of an epoch, what was read of
          it is read again and skipped; and each of several processes reads all of it, of which it keeps
          its share of each batch. Threads take from it in turn, one at a time.
      batch_size: over all processes.
      sharding: of each leaf's first dimension, as `Layout.batch_sharding`.
      collate: makes a batch of a list of examples, see `Collate`; without it they are stacked.
      seed: of the order; None reads the examples in their own order.
      epochs: how often to read all of them; None for ever.
      num_threads: that read and collate ahead; 0 does it when asked. By default 0 for arrays in memory
        without `collate`, where handing over to a thread costs more than the reading, and 2 for all else.

    Raises:
      LayoutError: `batch_size` does not divide over the devices.
      ExamplesError: there are no examples.
    """
    return Batches(
        examples,
        batch_size,
        rows=local_rows(batch_size, sharding),
        place=placing(batch_size, sharding),
        collate=collate,
        seed=seed,
        epochs=epochs,
        num_threads=num_threads,
    )
