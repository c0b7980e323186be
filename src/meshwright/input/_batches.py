"""Global batches from examples, in an order that one integer describes.

Each process reads only the rows of the batch that its own devices hold; threads read ahead. What
was read ahead is no part of the state: the state is the number of samples *returned*, so it is
true at every moment, and means the same on any number of processes and with any batch size.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import jax
import numpy as np
from jax.sharding import NamedSharding

from meshwright.errors import InputError, UsageError
from meshwright.input._device import as_global, local_rows
from meshwright.input._order import Order
from meshwright.input._source import Arrays, as_source, read_rows

PyTree = Any

READ_AHEAD = 3  # batches: the one asked for and two more


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
        seed: int | None,
        epochs: int | None,
        num_threads: int | None,
    ):
        self._source = as_source(examples)
        self._order = Order(len(self._source), seed)
        self._batch_size, self._rows, self._place, self._seed = batch_size, rows, place, seed
        self._end = None if epochs is None else epochs * len(self._source)
        self._returned = 0  # samples, over all processes: the whole state
        self._ahead: deque[Future[PyTree]] = deque()
        self._submitted = 0  # samples asked of the threads
        num_threads = _threads_for(self._source) if num_threads is None else num_threads
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="input") if num_threads else None
        self.wait_seconds = 0.0
        """How long `__next__` has waited for examples, in all."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PyTree:
        """Return the next global batch: numpy arrays in one process, global jax arrays in several.

        Raises:
          StopIteration: fewer than a whole batch are left of the last epoch.
          ExamplesError: the examples do not stack.
        """
        if self._is_past_end(self._returned):
            raise StopIteration
        started = time.perf_counter()
        batch = self._read(self._returned) if self._threads is None else self._read_ahead(self._threads)
        self._returned += self._batch_size
        self.wait_seconds += time.perf_counter() - started
        return self._place(batch)

    def peek(self) -> PyTree:
        """Return this process's rows of the next batch as numpy arrays, and do not move.

        Raises:
          UsageError: there is not one whole batch.
        """
        if self._is_past_end(self._returned):
            raise UsageError(
                f"{len(self._source)} examples do not fill one batch of {self._batch_size}; "
                "make the batch smaller or the epochs more."
            )
        return self._read(self._returned)

    def get_state(self) -> dict[str, Any]:
        """Return the position after the batch last returned, and what it holds good for."""
        return {"samples": self._returned, "seed": self._seed, "num_examples": len(self._source)}

    def set_state(self, state: dict[str, Any], /) -> None:
        """Continue after `state["samples"]` samples.

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
        self._returned = int(state["samples"])
        self._forget_ahead()

    def close(self) -> None:
        """Stop the threads. What was read ahead is dropped."""
        self._forget_ahead()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _read_ahead(self, threads: ThreadPoolExecutor) -> PyTree:
        for start in range(self._returned, self._returned + READ_AHEAD * self._batch_size, self._batch_size):
            if not self._is_past_end(start) and start >= self._submitted:
                self._ahead.append(threads.submit(self._read, start))
                self._submitted = start + self._batch_size
        try:
            return self._ahead.popleft().result()
        except BaseException:
            self._forget_ahead()  # so that trying again reads again
            raise

    def _forget_ahead(self) -> None:
        for future in self._ahead:
            future.cancel()
        self._ahead.clear()
        self._submitted = self._returned

    def _read(self, start: int) -> PyTree:
        return read_rows(self._source, self._order.ids(start, self._rows))

    def _is_past_end(self, start: int) -> bool:
        return self._end is not None and start + self._batch_size > self._end


def batches(
    examples: Any,
    batch_size: int,
    sharding: NamedSharding,
    *,
    seed: int | None = 0,
    epochs: int | None = None,
    num_threads: int | None = None,
) -> Batches:
    """Return an iterator of global batches of `batch_size` examples, split as `sharding` says.

    The stream of samples runs on over epochs, each in a new order; a batch may hold the end of one
    and the start of the next. What does not fill a batch at the end of the last epoch is left out.

    Args:
      examples: a mapping of arrays, or anything with `__len__` and `__getitem__`.
      batch_size: over all processes.
      sharding: of each leaf's first dimension, as `Layout.batch_sharding`.
      seed: of the order; None reads the examples in their own order.
      epochs: how often to read all of them; None for ever.
      num_threads: that read ahead; 0 reads when asked. By default 0 for arrays in memory, where handing
        over to a thread costs more than the reading, and 2 for everything else.

    Raises:
      LayoutError: `batch_size` does not divide over the devices.
      ExamplesError: there are no examples.
    """
    place = as_global(batch_size, sharding) if jax.process_count() > 1 else lambda batch: batch
    rows = local_rows(batch_size, sharding)
    return Batches(
        examples, batch_size, rows=rows, place=place, seed=seed, epochs=epochs, num_threads=num_threads
    )


def _threads_for(source: Any) -> int:
    return 0 if isinstance(source, Arrays) and source.in_memory else 2
