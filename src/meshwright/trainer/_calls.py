"""The data of one call of `fit`, among others: a position says which call it is of.

    {"call": 2, "first_step": 400, "finished": [{…}], "epoch": 1, "in_epoch": {…}}

Calls count from 1 in each process that runs the script. A process that begins anew finds by the position that
was saved which of its calls are finished, and which one goes on. Of the newest finished ones it holds all
that is told and returned; of those before them how many they are, and a digest of what they trained on:

    "older": {"count": 900, "digest": "5d41402abc4b"}
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from meshwright.trainer._epochs import Epochs
from meshwright.tree import PyTree

Position = Mapping[str, Any]

NUM_KEPT = 100
"""The finished calls that a position tells all of: each checkpoint has it."""


@dataclass(frozen=True)
class Finished:
    """The record of the calls of `fit` that are finished."""

    newest: tuple[Mapping[str, Any], ...] = ()
    """The last ones, in order: fingerprint, what was asked, step and scores."""
    num_older: int = 0
    """The calls before these."""
    digest: str = ""
    """The fingerprint of the older ones' fingerprints."""

    @classmethod
    def saved_in(cls, state: Position) -> Self:
        """Return what a position tells."""
        older = state.get("older", {})
        return cls(tuple(state.get("finished", ())), older.get("count", 0), older.get("digest", ""))

    def to_save(self) -> dict[str, Any]:
        """Return it as a part of a position."""
        older = {"older": {"count": self.num_older, "digest": self.digest}} if self.num_older else {}
        return {"finished": list(self.newest), **older}

    def about(self, number: int) -> Mapping[str, Any] | None:
        """Return what is known of a finished call; None of an older one."""
        return self.newest[number - self.num_older - 1] if number > self.num_older else None

    def told(self, number: int, asked: Mapping[str, Any], digest: str) -> tuple[str, dict[str, float]]:
        """Return what people are told of a finished call that is asked for again, and its scores.

        Args:
          asked: the same of what is asked for now.
          digest: of the calls of this process up to this one.
        """
        said, about = f"call {number} of fit was finished before", self.about(number)
        if about is None:
            if number == self.num_older and digest != self.digest:
                said += ", and it or one before it on other examples: they are not trained again"
            return f"{said}; its scores are not kept any more", {}
        said += f", at step {about['step']}"
        if about["fingerprint"] != asked["fingerprint"]:
            said += ", on other examples or in batches of another size: it is not trained again"
        elif about["asked"] != asked["asked"]:
            said += (
                f", with {about['asked']}: only the last call can train more, so {asked['asked']} is not done"
            )
        return said, dict(about["scores"])

    def then(self, number: int, about: Mapping[str, Any]) -> "Finished":
        """Return what is known when the call of this number is finished, too."""
        newest = (*self.newest[: number - self.num_older - 1], about)
        num_left_out, digest = max(len(newest) - NUM_KEPT, 0), self.digest
        for older in newest[:num_left_out]:
            digest = digest_of(digest, older["fingerprint"])
        return Finished(newest[num_left_out:], self.num_older + num_left_out, digest)


def digest_of(digest: str, fingerprint: str) -> str:
    """Return the digest of one more call, after that of all before it."""
    return hashlib.sha256(f"{digest} {fingerprint}".encode()).hexdigest()[:12]


class CallData:
    """The batches of one call. What was saved by a later one ends it at once.

    Args:
      epochs: the batches.
      number: of the call, from 1.
      first_step: the updates made before it.
      finished: what is known of the calls before it.
    """

    def __init__(self, epochs: Epochs, number: int, first_step: int, finished: Finished):
        self.epochs, self.number, self.first_step = epochs, number, first_step
        self.finished = finished
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
        about = {"call": self.number, "first_step": self.first_step, **self.finished.to_save()}
        return {**about, **self.epochs.get_state()}

    def set_state(self, state: Position, /) -> None:
        """Go on from a position that was saved by this call, or stand behind the end for one of a later call.

        Raises:
          InputError: it is of another seed or number of examples.
        """
        self.finished = Finished.saved_in(state)
        call = int(state.get("call", 1))
        if call > self.number:
            self.saved = state
        elif call == self.number:
            self.first_step = int(state.get("first_step", 0))
            self.epochs.set_state(dict(state))
