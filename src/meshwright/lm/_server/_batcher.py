"""The thread that generates: requests join the rows of a pool, and leave them, while others go on."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from meshwright.lm._generation._pool import Pool, Wanted
from meshwright.lm._server._guard import log_failure


class News(NamedTuple):
    """What a request is told."""

    tokens: np.ndarray
    """New tokens, int32[n]."""
    is_last: bool
    """True if its row has ended."""
    has_failed: bool = False
    """True if the model failed, and no more will come."""


Tell = Callable[[News], None]


class Ticket:
    """A place in the queue or in a row. It belongs to one prompt."""

    def __init__(self, wanted: Wanted, tell: Tell):
        self.wanted, self.tell = wanted, tell


class Full(Exception):  # noqa: N818 - it is no fault: the client is to come again
    """The queue has no room for a request."""


class Batcher:
    """A pool, a queue of bounded length before it, and a thread that advances the rows.

    Example:
      >>> import time
      >>> model = mw.lm.without_cache(lambda params, tokens: params[tokens])  # a table of pairs
      >>> pool = mw.lm._internal.Pool(model, jnp.eye(4)[::-1], length=16, slots=2)
      >>> batcher, told = mw.lm._internal.Batcher(pool), []
      >>> _ = batcher.submit([mw.lm._internal.Wanted(np.array([0]), 3)], [told.append])
      >>> while not (told and told[-1].is_last):
      ...     time.sleep(0.01)
      >>> batcher.close()
      >>> told[0].tokens
      array([3, 0, 3], dtype=int32)
    """

    def __init__(self, pool: Pool, *, max_waiting: int = 256, every: int = 4):
        self.pool, self.max_waiting, self._every = pool, max_waiting, every
        self._waiting: deque[Ticket] = deque()
        self._owners: dict[int, Ticket] = {}
        self._changed, self._is_closed = threading.Condition(), False
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
        """Return whether it takes no more prompts: it was closed, or the model cannot be made ready again."""
        return self._is_closed

    def submit(self, wanted: Sequence[Wanted], tell: Sequence[Tell]) -> list[Ticket]:
        """Put prompts into the queue, all or none, and return a ticket for each."""
        tickets = [Ticket(*each) for each in zip(wanted, tell, strict=True)]
        with self._changed:
            free = self.pool.slots - len(self._owners)
            if self._is_closed or len(self._waiting) + len(tickets) > self.max_waiting + free:
                raise Full
            self._waiting += tickets
            self._changed.notify()
        return tickets

    def leave(self, tickets: Sequence[Ticket]) -> None:
        """Give up prompts, whose rows are then free; those that have ended are ignored."""
        with self._changed:
            gone = {id(ticket) for ticket in tickets}
            self._waiting = deque(each for each in self._waiting if id(each) not in gone)
            self._owners = {slot: each for slot, each in self._owners.items() if id(each) not in gone}

    def close(self) -> None:
        """End the thread. Prompts that have not ended are told that they failed."""
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
                new, some_wait = self._taken(), bool(self._waiting)
            try:
                self.pool.start({slot: ticket.wanted for slot, ticket in new.items()})
                found = self.pool.advance(self._every, 1 if some_wait else None)
            except Exception as problem:  # of the model or the device: later requests may fare better
                log_failure("the model failed:", problem)
                can_go_on = self._reset()
                self._fail()
                if can_go_on:
                    continue
                break
            self._tell(found)
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

    def _taken(self) -> dict[int, Ticket]:
        """Return the prompts that get a free row now, by slot."""
        free = [slot for slot in range(self.pool.slots) if slot not in self._owners]
        new = {slot: self._waiting.popleft() for slot in free[: len(self._waiting)]}
        self._owners |= new
        return new

    def _tell(self, found: dict[int, tuple[np.ndarray, bool]]) -> None:
        with self._changed:
            owners = list(self._owners.items())
            for slot, _ in owners:
                if found[slot][1]:
                    del self._owners[slot]
        for slot, ticket in owners:
            ticket.tell(News(*found[slot]))

    def _fail(self) -> None:
        with self._changed:
            tickets = [*self._owners.values(), *self._waiting]
            self._owners, self._waiting = {}, deque()
        for ticket in tickets:
            ticket.tell(News(np.zeros(0, np.int32), True, has_failed=True))
