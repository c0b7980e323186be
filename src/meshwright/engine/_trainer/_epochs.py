"""The batches of one call of `fit`, and the position in them, which a checkpoint contains.

Examples at the end of an epoch that do not fill a batch are left out. The position names the call that saved
it, and has the record of the finished calls. For the newest of these it has everything that `fit` logs and
returns; for all calls before them only their number and a digest of their examples:

    {"call": 2, "first_step": 400, "finished": [{…}], "older": {"count": 900, "digest": "5d41402abc4b"},
     "epoch": 1, "drawn_from": 400, "in_epoch": {…}}

Calls are numbered from 1 in each process. A restarted process finds in the saved position which of its calls
are finished and which one it must continue.
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from jax.sharding import NamedSharding

from meshwright.base._internal import PyTree
from meshwright.data._internal import (
    Batches,
    Collate,
    batches,
    num_epochs_of,
    num_examples,
    of_epoch,
    readable_again,
)
from meshwright.errors import ExamplesError, InputError

Position = Mapping[str, Any]

NUM_KEPT = 100
"""The largest number of finished calls that a position describes in full, to keep checkpoints small."""


@dataclass(frozen=True)
class FinishedCalls:
    """The record of the finished calls of `fit`."""

    newest: tuple[Mapping[str, Any], ...] = ()
    """The newest calls, in order. Each has its fingerprint, its length as asked for, its step and scores."""
    num_older: int = 0
    """The number of calls before these."""
    digest: str = ""
    """The digest of the fingerprints of the older calls."""

    @classmethod
    def saved_in(cls, state: Position) -> Self:
        """Return the record that a position contains."""
        older = state.get("older", {})
        return cls(tuple(state.get("finished", ())), older.get("count", 0), older.get("digest", ""))

    def to_save(self) -> dict[str, Any]:
        """Return the record as a part of a position."""
        older = {"older": {"count": self.num_older, "digest": self.digest}} if self.num_older else {}
        return {"finished": list(self.newest), **older}

    def answer(self, number: int, record: Mapping[str, Any], digest: str) -> tuple[str, dict[str, float]]:
        """Return the message for a finished call that is made again, and the scores of the call."""
        message = f"call {number} of fit was finished before"
        if number <= self.num_older:
            if number == self.num_older and digest != self.digest:
                message += "; it or an earlier call had other examples, and is not trained again"
            return f"{message}; its scores are no longer recorded", {}
        call = self.newest[number - self.num_older - 1]
        message += f", at step {call['step']}"
        if call["fingerprint"] != record["fingerprint"]:
            message += ", on other examples or with another batch size: it is not trained again"
        elif call["asked"] != record["asked"]:
            message += (
                f", with {call['asked']}; {record['asked']} is ignored: only the last call trains further"
            )
        return message, dict(call["scores"])

    def with_call(self, number: int, record: Mapping[str, Any]) -> "FinishedCalls":
        """Return the record after the call with this number, too, is finished."""
        newest = (*self.newest[: number - self.num_older - 1], record)
        num_left_out, digest = max(len(newest) - NUM_KEPT, 0), self.digest
        for older in newest[:num_left_out]:
            digest = digest_of(digest, older["fingerprint"])
        return FinishedCalls(newest[num_left_out:], self.num_older + num_left_out, digest)


def digest_of(digest: str, fingerprint: str) -> str:
    """Return the digest of all calls so far, from the digest before the last call and its fingerprint."""
    return hashlib.sha256(f"{digest} {fingerprint}".encode()).hexdigest()[:12]


_NONE_FINISHED = FinishedCalls()
EPOCH = "epoch"
"""The name of the number of finished epochs, in the scores of a checkpoint saved at the end of an epoch."""


class Epochs:
    """An iterator over the batches of all epochs of a call.

    It ends at once if the saved position is that of a later call.
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
        call: int = 1,
        first_step: int = 0,
        finished: FinishedCalls = _NONE_FINISHED,
    ):
        self.call, self.first_step, self.finished = call, first_step, finished
        self.saved: Position | None = None
        """The saved position, if a later call saved it. Then this call was finished before."""
        examples = readable_again(examples, num_epochs)

        def open_epoch(epoch: int, drawn_from: int) -> Batches:
            of_call = _seed_of(seed, 0, drawn_from) if drawn_from else seed
            order = _seed_of(of_call, epoch) if shuffle else None
            options = {"collate": collate, "seed": order, "epochs": 1, "map_seed": (of_call, epoch)}
            return batches(of_epoch(examples, epoch), batch_size, sharding, **options)

        self._open: Callable[[int, int], Batches] = open_epoch
        self._drawn_from = first_step
        self._batch_size, self._num_epochs = batch_size, num_epochs_of(examples, num_epochs)
        self._num_examples = num_examples(examples)
        self.epoch = 0
        """The number of the epoch that is being read, from 0."""
        self.wait_seconds = 0.0
        """The total number of seconds spent waiting for examples."""
        self._batches = open_epoch(0, first_step)
        self.state_is_global = self._batches.state_is_global
        """True if the state is the same on all processes; see `Batches.state_is_global`."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PyTree:
        """Return the next batch."""
        if self.is_empty():
            raise StopIteration
        if self.at_end_of_epoch():
            self._turn_to(self.epoch + 1)
            self.peek()
        return next(self._batches)

    def peek(self) -> PyTree:
        """Return this process's rows of the next batch of this epoch, without moving on."""
        if self.at_end_of_epoch():
            batched = "If the examples are batches already, wrap them: mw.data.Batched(loader)."
            smaller = "Make the batch smaller."
            hints = (smaller, batched) if self._num_examples is not None else (batched, smaller)
            raise ExamplesError(
                f"epoch {self.epoch} has too few examples to fill one batch of {self._batch_size}.\n"
                f"  {' Otherwise: '.join(hints)}"
            )
        return self._batches.peek()

    def shapes(self) -> list[PyTree]:
        """Return rows of the other shapes that batches may have; see `Batches.shapes`."""
        return self._batches.shapes()

    def facts(self) -> dict[str, str]:
        """Return the facts about this epoch that must be the same on all processes; see `Batches.facts`."""
        return {"call": str(self.call), "epoch": str(self.epoch), **self._batches.facts()}

    def at_end_of_epoch(self) -> bool:
        """Return True if the last returned batch was the last of its epoch. It reads the next batch."""
        started = time.perf_counter()
        try:
            return self._batches.is_empty()
        finally:
            self.wait_seconds += time.perf_counter() - started

    def is_empty(self) -> bool:
        """Return True if there are no more batches in any epoch."""
        if self.saved is not None:
            return True
        if self._num_epochs is None or self.epoch + 1 < self._num_epochs:
            return False
        return self.epoch >= self._num_epochs or self.at_end_of_epoch()

    def num_left(self) -> int | None:
        """Return the number of batches left; None if it is not known or there is no end."""
        if self._num_examples is None or self._num_epochs is None:
            return None
        later_epochs = self._num_epochs - self.epoch - 1
        left_of_this = self._num_examples - self._batches.get_state()["samples"]
        return left_of_this // self._batch_size + later_epochs * (self._num_examples // self._batch_size)

    def get_state(self) -> dict[str, Any]:
        """Return the position after the last returned batch."""
        return {
            "call": self.call,
            "first_step": self.first_step,
            **self.finished.to_save(),
            "epoch": self.epoch,
            "drawn_from": self._drawn_from,
            "in_epoch": self._batches.get_state(),
        }

    def set_state(self, state: Position, /) -> None:
        """Continue from a state that `get_state` or `start_of` returned, if this call saved it.

        The state of a later call ends this call at once.
        """
        self.finished, call = FinishedCalls.saved_in(state), int(state.get("call", 1))
        self.saved = state if call > self.call else None
        if call != self.call:
            return
        self.first_step = int(state.get("first_step", 0))
        if "in_epoch" not in state:
            raise InputError(
                f"cannot continue from the data state {state} of this checkpoint: it was not saved by a "
                "Trainer.\n  Continue the run with the program that started it, or give another workdir."
            )
        self._drawn_from = int(state.get("drawn_from", 0))  # before version 0.2, all calls had one order
        self._turn_to(int(state["epoch"]))
        if state["in_epoch"] is not None:
            self._batches.set_state(state["in_epoch"])

    def close(self) -> None:
        """Stop reading ahead."""
        self._batches.close()

    def _turn_to(self, epoch: int) -> None:
        self._batches.close()
        self.epoch, self._batches = epoch, self._open(epoch, self._drawn_from)


def start_of(epoch: int) -> dict[str, Any]:
    """Return the position before the first batch of an epoch."""
    return {"epoch": epoch, "in_epoch": None}


def _seed_of(*numbers: int) -> int:
    """Return a seed for some numbers. It differs from the seeds of all other numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])
