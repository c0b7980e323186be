"""Batches epoch by epoch: each begins anew, and what fills no batch at its end is left out."""

import time
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from jax.sharding import NamedSharding

from meshwright.errors import ExamplesError, InputError
from meshwright.input import (
    Batches,
    Collate,
    batches,
    num_epochs_of,
    num_examples,
    of_epoch,
    readable_again,
)
from meshwright.tree import PyTree


class Epochs:
    """The data of a run. Its state is the epoch, and how far the next batch lies in it.

    Args:
      examples: as `batches` takes.
      seed: of each epoch's order, and of what mapping functions draw.
      num_epochs: None for ever.
      shuffle: if not, the examples are read in their own order.
    """

    def __init__(
        self,
        examples: Any,
        batch_size: int,
        sharding: NamedSharding,
        *,
        collate: Collate | None = None,
        seed: int,
        num_epochs: int | None,
        shuffle: bool = True,
    ):
        examples = readable_again(examples, num_epochs)

        def open_epoch(epoch: int) -> Batches:
            order = _seed_of(seed, epoch) if shuffle else None
            options = {"collate": collate, "seed": order, "epochs": 1, "map_seed": (seed, epoch)}
            return batches(of_epoch(examples, epoch), batch_size, sharding, **options)

        self._open: Callable[[int], Batches] = open_epoch
        self._batch_size, self._num_epochs = batch_size, num_epochs_of(examples, num_epochs)
        self._num_examples = num_examples(examples)
        self.epoch = 0
        """The number of the epoch that is being read, from 0."""
        self.wait_seconds = 0.0
        """Seconds that this has waited for examples, in all."""
        self._batches = open_epoch(0)
        self.state_is_global = self._batches.state_is_global
        """As that of `Batches`."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PyTree:
        """Return the next batch.

        Raises:
          StopIteration: after the last epoch.
          ExamplesError: an epoch does not fill one batch.
        """
        if self.is_empty():
            raise StopIteration
        if self.at_end_of_epoch():
            self._turn_to(self.epoch + 1)
            self.peek()
        return next(self._batches)

    def peek(self) -> PyTree:
        """Return this process's rows of the next batch of this epoch, and do not move.

        Raises:
          ExamplesError: there is none.
        """
        if self.at_end_of_epoch():
            batched = "If the examples are batches already, wrap them: mw.Batched(loader)."
            smaller = "Make the batch smaller."
            hints = (smaller, batched) if self._num_examples is not None else (batched, f"Else: {smaller}")
            raise ExamplesError(
                f"epoch {self.epoch} has too few examples to fill one batch of {self._batch_size}.\n"
                f"  {' '.join(hints)}"
            )
        return self._batches.peek()

    def shapes(self) -> list[PyTree]:
        """Return rows of the other shapes that batches may have, as `Batches.shapes` does."""
        return self._batches.shapes()

    def facts(self) -> dict[str, str]:
        """Return what must be the same on all processes, as `Batches.facts` does of this epoch."""
        return {"epoch": str(self.epoch), **self._batches.facts()}

    def at_end_of_epoch(self) -> bool:
        """Return whether the batch last returned was the last of its epoch, having read the next."""
        started = time.perf_counter()
        try:
            return self._batches.is_empty()
        finally:
            self.wait_seconds += time.perf_counter() - started

    def is_empty(self) -> bool:
        """Return whether the batch last returned was the last of all."""
        if self._num_epochs is None or self.epoch + 1 < self._num_epochs:
            return False
        return self.epoch >= self._num_epochs or self.at_end_of_epoch()

    def num_left(self) -> int | None:
        """Return how many batches are left; None if they are endless or only the examples know."""
        if self._num_examples is None or self._num_epochs is None:
            return None
        later_epochs = self._num_epochs - self.epoch - 1
        left_of_this = self._num_examples - self._batches.get_state()["samples"]
        return left_of_this // self._batch_size + later_epochs * (self._num_examples // self._batch_size)

    def get_state(self) -> dict[str, Any]:
        """Return the position after the batch last returned."""
        return {"epoch": self.epoch, "in_epoch": self._batches.get_state()}

    def set_state(self, state: dict[str, Any], /) -> None:
        """Continue from `state`, which `get_state` or `start_of` gave.

        Raises:
          InputError: it is of another seed or number of examples.
        """
        if "in_epoch" not in state:
            raise InputError(
                f"the checkpoint's data state {state} is of another kind of run.\n"
                "  Continue it with what began it, or start a new run in another workdir."
            )
        self._turn_to(int(state["epoch"]))
        if state["in_epoch"] is not None:
            self._batches.set_state(state["in_epoch"])

    def close(self) -> None:
        """Stop reading ahead."""
        self._batches.close()

    def _turn_to(self, epoch: int) -> None:
        self._batches.close()
        self.epoch, self._batches = epoch, self._open(epoch)


def start_of(epoch: int) -> dict[str, Any]:
    """Return the position before the first batch of an epoch."""
    return {"epoch": epoch, "in_epoch": None}


def _seed_of(seed: int, epoch: int) -> int:
    """Return a seed for one epoch's order, which no other epoch shares."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
