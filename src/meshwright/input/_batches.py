"""Global batches from examples, in an order that a number or two describe.

Each process reads only the rows of the batch that its own devices hold; threads read ahead. What
was read ahead is no part of the state: the state is the number of samples *returned*, so it is
true at every moment, and means the same on any number of processes and with any batch size.
"""

import contextlib
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
from meshwright.input._batched import Batched
from meshwright.input._collate import Collate
from meshwright.input._device import local_rows, placing
from meshwright.input._facts import facts_of
from meshwright.input._protocol import Source
from meshwright.input._reading import reader, shapes_of, shapes_said, without
from meshwright.input._samples import leave, readable_again, samples_of, shares
from meshwright.input._source import num_threads_for
from meshwright.input._stretches import Position, from_json
from meshwright.input._together import in_step
from meshwright.tree import PyTree


class Batches:
    """An endless (or `epochs` long) iterator of global batches. See `batches`, which makes one.

    A context manager: leaving it stops the threads that read ahead.
    """

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
        map_seed: tuple[int, int] | None = None,
    ):
        examples = readable_again(examples, epochs)
        self._samples = samples_of(examples, seed, epochs, map_seed or (seed or 0, 0))
        self._batch_size, self._rows, self._place = batch_size, rows, place
        self._examples, self._reader = examples, reader(examples, collate)
        self._num_threads = num_threads_for(examples, collate) if num_threads is None else num_threads
        self._position = Position(0, 0)  # after the batch last returned: the whole state
        self._ahead: Generator[tuple[PyTree, Position], None, None] | None = None
        self._peeked: tuple[PyTree, Position] | None = None
        self._source: Source | None = None  # of the first examples of the batch that is read first
        self._facts: dict[str, str] | None = None
        self._are_local = isinstance(examples, Batched) and examples.rows == "local"
        self.state_is_global = not self._are_local
        """Whether it is the same on all processes, and good for any number of them; see `DataIterator`."""
        self.wait_seconds = 0.0
        """How long `__next__` has waited for examples, in all."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
                "make the batch smaller or the epochs more.\n  If what they are read from gives batches, "
                "say so: mw.Batched(loader)."
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
            self._facts = facts_of([] if self._are_local else self._source or [])
        position = self.get_state()
        if self._are_local:
            position.pop("state", None)  # of this process's loader
        return {**self._facts, "batch_size": str(self._batch_size), "position": str(position)}

    def shapes(self) -> list[PyTree]:
        """Return rows, as structs, of all other shapes than the next batch's that may come, and do not move.

        They are known of `Bucketed` examples, and where `Batched` names them; else there are none.
        """
        shapes = shapes_of(self._examples, self._reader)
        return without(shapes, self.peek()) if shapes else []

    def get_state(self) -> dict[str, Any]:
        """Return the position after the batch last returned, and what it holds good for."""
        return self._samples.state(self._position)

    def set_state(self, state: dict[str, Any], /) -> None:
        """Continue from `state`, which `get_state` gave.

        Raises:
          InputError: the state is of another seed or another number of examples, so that going on
            would repeat some and leave out others.
        """
        _check_same_data(state, self.get_state())
        epoch, samples, inner = state.get("epoch", 0), state["samples"], from_json(state.get("state"))
        self._position = Position(int(epoch), int(samples), inner)
        self._forget_ahead()

    def close(self) -> None:
        """Stop the threads. What was read ahead is dropped, and an iterator that was given set back."""
        self._forget_ahead()
        leave(self._examples, self._position.state)

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
        read, num_threads = self._reader, self._num_threads  # the generator must not keep `self` alive
        each = shares(self._samples, position, self._batch_size, self._rows)
        first = list(itertools.islice(each, 1))
        self._source = first[0][0][0].source if first else None
        tasks = ((partial(read, parts), after) for parts, after in itertools.chain(first, each))
        ahead = read_ahead(tasks, num_threads)
        return _all_have_one(ahead) if self._are_local and jax.process_count() > 1 else ahead

    def _forget_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = self._peeked = self._source = None


def _check_same_data(state: dict[str, Any], mine: dict[str, Any]) -> None:
    changed = [key for key in ("seed", "num_examples", "lengths") if state.get(key) != mine.get(key)]
    if changed:
        raise InputError(
            "the data changed since the checkpoint: "
            + ", ".join(f"{key} was {state.get(key)}, is {mine.get(key)}" for key in changed)
            + ".\n  Continuing would repeat some examples and leave out others. "
            "Give back the same data and seed, or start a new run."
        )


def _all_have_one(
    results: Generator[tuple[PyTree, Position], None, None],
) -> Generator[tuple[PyTree, Position], None, None]:
    """Yield `results`, each when all processes have one of the same shape."""
    with contextlib.closing(results):
        yield from in_step(results, "the batches of the loaders", lambda pair: shapes_said(pair[0]))


def batches(
    examples: Any,
    batch_size: int,
    sharding: NamedSharding,
    *,
    collate: Collate | None = None,
    seed: int | None = 0,
    epochs: int | None = None,
    num_threads: int | None = None,
    map_seed: tuple[int, int] | None = None,
) -> Batches:
    """Return an iterator of global batches of `batch_size` examples, split as `sharding` says.

    The stream of samples runs on over epochs, each in a new order; a batch may hold the end of one
    and the start of the next. What does not fill a batch at the end of the last epoch is left out.

    Threads read ahead until it is closed: `with mw.batches(...) as data:`.

    Args:
      examples: one of

        - a mapping of arrays, or anything with `__len__` and `__getitem__`;
        - a function of the epoch, `epoch -> examples`, counted from 0 and called again where a run
          continues: the same epoch must give the same examples;
        - an iterable, or a function of nothing that returns a new one each time, `() -> iterable`. Its
          order is its own, whatever `seed`; to continue in the middle of an epoch, its iterator is given
          the state that it had (`get_state` and `set_state`), and if it has none, what was read is read
          again and skipped; and each of several processes reads all of it, of which it keeps its share of
          each batch. Threads take from it in turn, one at a time;
        - an iterator with `get_state` and `set_state`, which is read once: its end is that of the data;
        - one of `Batched` (a loader's batches), `Bucketed` (examples of several lengths) and `mapped(...)`.
      batch_size: the number of examples in a batch, over all processes.
      sharding: how the first dimension of each array is split: `Layout.batch_sharding`.
      collate: makes a batch of a list of examples, see `Collate`; without it they are stacked.
          seed: the seed of the order; None reads the examples in their own order.
      epochs: how often all examples are read; None reads them for ever.
      num_threads: how many threads read and collate ahead; 0 does it when asked. The default is 0 for arrays
        in memory without `collate`, where handing over to a thread costs more than the reading, and 2 for all
        else.
      map_seed: the seed and the number of the first epoch, by which functions of `mapped` draw; the
        default is `(seed or 0, 0)`.

    Returns:
      An iterator of pytrees of arrays [batch_size, ...]: of NumPy in one process, global ones in several.

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
        map_seed=map_seed,
    )
