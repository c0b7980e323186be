"""The data of one call of `fit`, among others: a position says which call it is of.

    {"call": 2, "first_step": 400, "finished": [{…}], "epoch": 1, "in_epoch": {…}}

Calls count from 1 in each process that runs the script. A process that begins anew finds by the position that
was saved which of its calls are finished, and which one goes on.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from meshwright.trainer._epochs import Epochs
from meshwright.tree import PyTree

Position = Mapping[str, Any]


class CallData:
    """The batches of one call. What was saved by a later one ends it at once.

    Args:
      epochs: the batches.
      number: of the call, from 1.
      first_step: the updates made before it.
      finished: what is known of the calls before it.
    """

    def __init__(self, epochs: Epochs, number: int, first_step: int, finished: Sequence[Mapping[str, Any]]):
        self.epochs, self.number, self.first_step = epochs, number, first_step
        self.finished = list(finished)
        """What is known of calls that are finished, in order."""
        self.saved: Position | None = None
        """The position that it was told to go on from, if that is of a later call."""
        self.state_is_global = epochs.state_is_global
        """As that of `Batches`."""

    @property
    def wait_seconds(self) -> float:
        return self.epochs.wait_seconds

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PyTree:
        """Return the next batch."""
        return next(self.epochs)

    def is_empty(self) -> bool:
        """Return whether there are no batches left for this call."""
        return self.saved is not None or self.epochs.is_empty()

    def facts(self) -> dict[str, str]:
        """Return what must be the same on all processes."""
        return {"call": str(self.number), **self.epochs.facts()}

    def get_state(self) -> dict[str, Any]:
        """Return the position after the batch last returned."""
        about = {"call": self.number, "first_step": self.first_step, "finished": self.finished}
        return {**about, **self.epochs.get_state()}

    def set_state(self, state: Position, /) -> None:
        """Go on from a position that was saved by this call, or stand behind the end for one of a later call.

        Raises:
          InputError: it is of another seed or number of examples.
        """
        self.finished = list(state.get("finished", ()))
        call = int(state.get("call", 1))
        if call > self.number:
            self.saved = state
        elif call == self.number:
            self.first_step = int(state.get("first_step", 0))
            self.epochs.set_state(dict(state))
