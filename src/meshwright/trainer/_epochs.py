"""Batches epoch by epoch: each begins anew, and what fills no batch at its end is left out."""

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import numpy as np

from meshwright.errors import InputError
from meshwright.input import Batches, by_epoch, is_indexed
from meshwright.tree import PyTree


class Epochs:
    """The data of a run. Its state is the epoch, and how far the next batch lies in it.

    Args:
      open_epoch: returns the batches of one epoch, given its number from 0.
      num_epochs: None for ever.
    """

    state_is_global = True

    def __init__(self, open_epoch: Callable[[int], Batches], num_epochs: int | None):
        self._open, self._num_epochs, self._waited = open_epoch, num_epochs, 0.0
        self.epoch = 0
        """The number of the epoch that is being read, from 0."""
        self._batches = open_epoch(0)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PyTree:
        """Return the next batch.

        Raises:
          StopIteration: after the last epoch.
          InputError: an epoch does not fill one batch.
        """
        if self.at_end_of_epoch():
            self._turn_to(self.epoch + 1)
        if self.epoch == self._num_epochs:
            raise StopIteration
        return next(self._batches)

    def peek(self) -> PyTree:
        """Return this process's rows of the next batch, and do not move."""
        return self._batches.peek()

    def at_end_of_epoch(self) -> bool:
        """Return whether the batch last returned was the last of its epoch."""
        return self._batches.is_empty()

    @property
    def wait_seconds(self) -> float:
        """How long this has waited for examples, in all."""
        return self._waited + self._batches.wait_seconds

    def get_state(self) -> dict[str, Any]:
        """Return the position after the batch last returned."""
        return {"epoch": self.epoch, "in_epoch": self._batches.get_state()}

    def set_state(self, state: dict[str, Any], /) -> None:
        """Continue from `state`, which `get_state` gave.

        Raises:
          InputError: it is of another seed or number of examples.
        """
        if "in_epoch" not in state:
            raise InputError(
                f"the checkpoint's data state {state} is of another kind of run.\n"
                "  Continue it with what began it, or start a new run in another workdir."
            )
        self._turn_to(int(state["epoch"]))
        self._batches.set_state(state["in_epoch"])

    def close(self) -> None:
        """Stop reading ahead."""
        self._batches.close()

    def _turn_to(self, epoch: int) -> None:
        self._waited += self._batches.wait_seconds
        self._batches.close()
        self.epoch, self._batches = epoch, self._open(epoch)


def of_epoch(examples: Any, epoch: int) -> Any:
    """Return the examples of one epoch: where they are a function of it, that function called when read."""
    if callable(examples) and not is_indexed(examples):
        return partial(by_epoch(examples), epoch)
    return examples


def seed_of(seed: int, epoch: int) -> int:
    """Return a seed for one epoch's order, which no other epoch shares."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
