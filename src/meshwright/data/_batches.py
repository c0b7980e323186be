"""Global batches of examples, in an order that one or two numbers describe.

Each process reads only the rows of a batch that its own devices hold; threads read ahead. The state does not
depend on reading ahead: it is the number of samples *returned*. So it is right at every moment, and has the
same meaning for any number of processes and any batch size.
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

from meshwright.base._internal import PyTree, explained
from meshwright.data._batched import Batched
from meshwright.data._collate import Collate
from meshwright.data._device import local_rows, placing
from meshwright.data._kinds import Source
from meshwright.data._mixture import Mixture
from meshwright.data._order import Position
from meshwright.data._reading import in_step, read_ahead, reader, shapes_of, shapes_text, without
from meshwright.data._samples import leave, readable_again, samples_of, shares
from meshwright.data._source import PartSource, facts_of, num_examples, num_threads_for
from meshwright.data._stretches import from_json
from meshwright.data._text import Text
from meshwright.errors import InputError, UsageError
from meshwright.processes import _internal as processes

_OF_DATA = "seed", "num_examples", "lengths", "data", "shares"

Results = Generator[tuple[PyTree, Position], None, None]
"""Batches, each with the position after it."""


class Batches:
    """An iterator of global batches; `batches` makes it. Leaving it as a context stops its threads."""

    def __init__(
        self,
        examples: Any,
        batch_size: int,
        *,
        rows: np.ndarray,
        to_global: Callable[[PyTree], PyTree],
        collate: Collate | None = None,
        seed: int | None,
        epochs: int | None,
        num_threads: int | None,
        map_seed: tuple[int, int] | None = None,
        is_of_all: bool = False,
    ):
        examples = readable_again(examples, epochs)
        self._samples = samples_of(examples, seed, epochs, map_seed or (seed or 0, 0))
        self._batch_size, self._rows, self._to_global = batch_size, rows, to_global
        self._examples, self._reader = examples, reader(examples, collate)
        self._num_threads = num_threads_for(examples, collate) if num_threads is None else num_threads
        # The whole state: the position after the batch that was returned last.
        self._position = Position(0, 0)
        self._ahead: Results | None = None
        self._peeked: tuple[PyTree, Position] | None = None
        # The source of the first examples that are read.
        self._source: Source | PartSource | None = None
        self._facts: dict[str, str] | None = None
        self._are_local = isinstance(examples, Batched) and examples.rows == "local"
        self._in_agreement = _agreement(examples, self._are_local, is_of_all)
        self.state_is_global = not self._are_local
        """True if the state is the same on all processes and for any number of them; see `DataIterator`."""
        self.wait_seconds = 0.0
        """Total seconds that `__next__` has waited for examples."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PyTree:
        """Return the next global batch: NumPy arrays in one process, global JAX arrays in several."""
        started = time.perf_counter()
        # `observe` looks for this name in profiles.
        with jax.profiler.TraceAnnotation("input wait"):
            batch, self._position = self._peeked or self._read()
        self._peeked = self._source = None
        self.wait_seconds += time.perf_counter() - started
        return self._to_global(batch)

    def peek(self) -> PyTree:
        """Return this process's rows of the next batch as NumPy arrays, without moving on."""
        if self.is_empty() or self._peeked is None:
            raise UsageError(
                f"the remaining examples do not fill one batch of {self._batch_size}.\n"
                "  Use a smaller batch_size or more epochs. If the source yields batches, wrap it: "
                "mw.data.Batched(loader)."
            )
        return self._peeked[0]

    def is_empty(self) -> bool:
        """Return whether no whole batch is left; a batch that is read to find out is kept for `next`."""
        try:
            self._peeked = self._peeked or self._read()
        except StopIteration:
            return True
        return False

    def facts(self) -> dict[str, str]:
        """Return values that must be equal on all processes, by name, without moving on. Collective.

        They are the position and, before the first batch is taken, the number of examples and digests of
        three of them; those of one batch, if a function returned an iterable, which must not be used up.
        """
        if self._facts is None:
            # This reads the first batch ahead, and with it the source.
            self.is_empty()
            self._facts = facts_of([] if self._are_local else self._source or [])
        position = self.get_state()
        if self._are_local:
            # The loader of each process has a state of its own.
            position.pop("state", None)
        return {**self._facts, "batch_size": str(self._batch_size), "position": str(position)}

    def shapes(self) -> list[PyTree]:
        """Return rows, as structs, of other shapes that later batches may have, without moving on.

        They are known for `Bucketed` examples, and if `Batched` names them.
        """
        shapes = shapes_of(self._examples, self._reader)
        return without(shapes, self.peek()) if shapes else []

    def get_state(self) -> dict[str, Any]:
        """Return the position after the batch returned last, and the seed and data that it belongs to."""
        return self._samples.state(self._position)

    def set_state(self, state: dict[str, Any], /) -> None:
        """Continue from a state that `get_state` returned."""
        epoch, samples, inner = state.get("epoch", 0), state["samples"], from_json(state.get("state"))
        position = Position(int(epoch), int(samples), inner)
        _check_same_data(state, self._samples.state(position))
        self._position = position
        self._forget_ahead()

    def close(self) -> None:
        """Stop the threads, and set a given iterator back to the position after the last batch used."""
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
            # Another attempt then reads the batch again.
            self._forget_ahead()
            raise

    def _from(self, position: Position) -> Results:
        """Yield the batches from `position` on."""
        # The generator must not hold `self`, or the threads would keep it alive.
        read, num_threads = self._reader, self._num_threads
        all_shares = shares(self._samples, position, self._batch_size, self._rows)
        # The source of the first batch is needed before the batch: its facts are compared between
        # processes.
        first = list(itertools.islice(all_shares, 1))
        self._source = first[0][0][0].source if first else None
        tasks = (
            (partial(read, parts), next_position)
            for parts, next_position in itertools.chain(first, all_shares)
        )
        return self._in_agreement(read_ahead(tasks, num_threads))

    def _forget_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = self._peeked = self._source = None


def _check_same_data(state: dict[str, Any], mine: dict[str, Any]) -> None:
    changed = [key for key in _OF_DATA if state.get(key) != mine.get(key)]
    if changed:
        raise InputError(
            "the data changed since the checkpoint: "
            + ", ".join(f"{key} was {state.get(key)}, is {mine.get(key)}" for key in changed)
            + ".\n  Continuing would repeat some examples and leave out others. "
            "Restore the same data and seed, or start a new run."
        )


def _agreement(examples: Any, are_local: bool, is_of_all: bool) -> Callable[[Results], Results]:
    """Return the check that all processes read as many batches, for examples whose number is not known."""
    if are_local:
        return _all_have_one if jax.process_count() > 1 else lambda results: results
    # Where the number of examples is known, all processes end in the same batch without an agreement.
    is_known = isinstance(examples, Text | Mixture) or num_examples(examples) is not None
    return _ending_together if is_of_all and not is_known else lambda results: results


def _all_have_one(results: Results) -> Results:
    """Yield `results`, each when all processes have one of the same shape."""
    with contextlib.closing(results):
        yield from in_step(results, "the batches of the loaders", lambda pair: shapes_text(pair[0]))


def _ending_together(results: Results) -> Results:
    """Yield `results`, and check that their epochs end in the same batches on all processes."""
    with contextlib.closing(results):
        yield from processes.ending_together(results, lambda pair: (pair[1].stretch, pair[1].samples))


@explained
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

    The stream of samples runs on over epochs, each in a new order; a batch may hold the end of one epoch and
    the start of the next. Samples that do not fill a batch at the end of the last epoch are left out. Threads
    read ahead until the iterator is closed, best by `with mw.batches(...) as data:`.

    Args:
      examples: One of these:
        - A mapping of arrays, or any object with `__len__` and `__getitem__`.
        - A function of the epoch, `epoch -> examples`. Epochs count from 0, and the function is called again
          when a run continues: it must return the same examples for the same epoch.
        - An iterable, or a function `() -> iterable` that returns a new one each time. It keeps its own
        order,
          whatever `seed`. To continue inside an epoch, its iterator gets its state back (`get_state` and
          `set_state`); without these, the used examples are read again and skipped. Each process reads all of
          it and keeps its rows of each batch. One thread at a time reads from it.
        - An iterator with `get_state` and `set_state`, which is read once: the data end with it.
        - What `text` or `mixture` returns.
        - A `Batched` (a loader's batches), a `Bucketed` (examples of several lengths) or `mapped(...)`.
      batch_size: Number of examples in a batch, over all processes.
      sharding: Split of the first dimension of each array, `Layout.batch_sharding`.
      collate: Makes a batch of a list of examples, see `Collate`; by default they are stacked.
      seed: Seed of the order; None reads the examples in their own order.
      epochs: Number of times that all examples are read; None is endless.
      num_threads: Number of threads that read and collate ahead; with 0, batches are read when asked for. The
        default is 0 for arrays in memory without `collate`, for which a thread costs more than the reading,
        and 2 otherwise.
      map_seed: Seed and number of the first epoch for the randomness of `mapped`; `(seed or 0, 0)` by
        default.

    Returns:
      An iterator of pytrees of arrays [batch_size, ...]: of NumPy in one process, global JAX arrays in
      several.

    Raises:
      LayoutError: The mesh does not divide `batch_size`.
      ExamplesError: There are no examples.

    Example:
      >>> sharding = mw.Layout(mw.make_mesh("data=8")).batch_sharding
      >>> with mw.batches({"x": np.ones((64, 3)), "y": np.arange(64)}, 16, sharding, epochs=1) as data:
      ...     [batch["x"].shape for batch in data]
      [(16, 3), (16, 3), (16, 3), (16, 3)]
    """
    return Batches(
        examples,
        batch_size,
        rows=local_rows(batch_size, sharding),
        to_global=placing(batch_size, sharding),
        collate=collate,
        seed=seed,
        epochs=epochs,
        num_threads=num_threads,
        map_seed=map_seed,
        is_of_all=processes.spans_all_processes(sharding.device_set),
    )
