"""The thread that generates: requests join the rows of a pool, and leave them, while others go on."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from meshwright.lm._generation._slots import GenerationRequest, Pool
from meshwright.lm._server._guard import log_failure


class Update(NamedTuple):
    """News of a row for the request that it belongs to."""

    tokens: np.ndarray
    """New tokens, int32[n]."""
    is_last: bool
    """True if its row has ended."""
    has_failed: bool = False
    """True if the model failed, and no more will come."""


OnUpdate = Callable[[Update], None]


class QueueEntry:
    """A place in the queue or in a row. It belongs to one prompt."""

    def __init__(self, generation: GenerationRequest, on_update: OnUpdate):
        self.generation, self.on_update = generation, on_update


class QueueFull(Exception):  # noqa: N818 - it is no fault: the client is to come again
    """The queue has no room for a request."""


class Batcher:
    """A pool, a queue of bounded length before it, and a thread that advances the rows.

    Example:
      >>> import time
      >>> model = mw.lm.without_cache(lambda params, tokens: params[tokens])  # a table of pairs
      >>> pool = mw.lm._internal.Pool(model, jnp.eye(4)[::-1], length=16, slots=2)
      >>> batcher, updates = mw.lm._internal.Batcher(pool), []
      >>> _ = batcher.submit([mw.lm._internal.GenerationRequest(np.array([0]), 3)], [updates.append])
      >>> while not (updates and updates[-1].is_last):
      ...     time.sleep(0.01)
      >>> batcher.close()
      >>> updates[0].tokens
      array([3, 0, 3], dtype=int32)
    """

    def __init__(self, pool: Pool, *, max_waiting: int = 256, every: int = 4):
        self.pool, self.max_waiting, self._every = pool, max_waiting, every
        self._waiting: deque[QueueEntry] = deque()
        self._owners: dict[int, QueueEntry] = {}
        self._changed, self._is_closed = threading.Condition(), False
        # The pool is called from this thread alone.
        self._thread = threading.Thread(target=self._run, name="meshwright-serve", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """Return the number of prompts in rows."""
        return len(self._owners)

    @property
    def waiting(self) -> int:
        """Return the number of prompts in the queue."""
        return len(self._waiting)

    @property
    def is_closed(self) -> bool:
        """Return whether the queue takes no more prompts: it was closed, or the model failed for good."""
        return self._is_closed

    def submit(
        self, generations: Sequence[GenerationRequest], on_updates: Sequence[OnUpdate]
    ) -> list[QueueEntry]:
        """Put prompts into the queue, all or none, and return a ticket for each."""
        entries = [QueueEntry(*pair) for pair in zip(generations, on_updates, strict=True)]
        with self._changed:
            # Prompts that a free row takes at once do not count as waiting.
            free = self.pool.slots - len(self._owners)
            if self._is_closed or len(self._waiting) + len(entries) > self.max_waiting + free:
                raise QueueFull
            self._waiting += entries
            self._changed.notify()
        return entries

    def leave(self, entries: Sequence[QueueEntry]) -> None:
        """Give up prompts, whose rows are then free; those that have ended are ignored."""
        with self._changed:
            left_ids = {id(entry) for entry in entries}
            self._waiting = deque(entry for entry in self._waiting if id(entry) not in left_ids)
            self._owners = {slot: entry for slot, entry in self._owners.items() if id(entry) not in left_ids}

    def close(self) -> None:
        """End the thread. Prompts that have not ended get an update that they failed."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._owners or self._is_closed):
                    self._changed.wait()
                if self._is_closed:
                    break
                new, some_wait = self._fill_rows(), bool(self._waiting)
            try:
                self.pool.start({slot: entry.generation for slot, entry in new.items()})
                tokens_by_slot = self.pool.advance(self._every, 1 if some_wait else None)
            except Exception as problem:
                # The model or the device failed. Later requests may fare better.
                log_failure("the model failed:", problem)
                can_go_on = self._reset()
                self._fail()
                if can_go_on:
                    continue
                break
            self._send(tokens_by_slot)
        self._fail()

    def _reset(self) -> bool:
        """Empty the pool; if that fails, too, return False: all requests from now on are refused."""
        try:
            self.pool.reset()
        except Exception as problem:
            log_failure("the model cannot be made ready again; restart the server:", problem)
            with self._changed:
                self._is_closed = True
            return False
        return True

    def _fill_rows(self) -> dict[int, QueueEntry]:
        """Return the prompts that get a free row now, by slot."""
        free = [slot for slot in range(self.pool.slots) if slot not in self._owners]
        new = {slot: self._waiting.popleft() for slot in free[: len(self._waiting)]}
        self._owners |= new
        return new

    def _send(self, tokens_by_slot: dict[int, tuple[np.ndarray, bool]]) -> None:
        with self._changed:
            owners = list(self._owners.items())
            for slot, _ in owners:
                if tokens_by_slot[slot][1]:
                    del self._owners[slot]
        for slot, entry in owners:
            entry.on_update(Update(*tokens_by_slot[slot]))

    def _fail(self) -> None:
        with self._changed:
            entries = [*self._owners.values(), *self._waiting]
            self._owners, self._waiting = {}, deque()
        for entry in entries:
            entry.on_update(Update(np.zeros(0, np.int32), True, has_failed=True))
