"""The record of the finished calls of `fit`, which checkpoints contain beside the position in the data.

For the newest finished calls it has everything that `fit` logs and returns. For all calls before them it has
only their number and a digest of their examples:

    "finished": [{…}], "older": {"count": 900, "digest": "5d41402abc4b"}
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

Position = Mapping[str, Any]

NUM_KEPT = 100
"""The largest number of finished calls that a position describes in full, to keep checkpoints small."""


@dataclass(frozen=True)
class Finished:
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
        before = self.newest[number - self.num_older - 1]
        message += f", at step {before['step']}"
        if before["fingerprint"] != record["fingerprint"]:
            message += ", on other examples or with another batch size: it is not trained again"
        elif before["asked"] != record["asked"]:
            message += (
                f", with {before['asked']}; {record['asked']} is ignored: only the last call trains further"
            )
        return message, dict(before["scores"])

    def then(self, number: int, record: Mapping[str, Any]) -> "Finished":
        """Return the record after the call with this number, too, is finished."""
        newest = (*self.newest[: number - self.num_older - 1], record)
        num_left_out, digest = max(len(newest) - NUM_KEPT, 0), self.digest
        for older in newest[:num_left_out]:
            digest = digest_of(digest, older["fingerprint"])
        return Finished(newest[num_left_out:], self.num_older + num_left_out, digest)


def digest_of(digest: str, fingerprint: str) -> str:
    """Return the digest of all calls so far, from the digest before the last call and its fingerprint."""
    return hashlib.sha256(f"{digest} {fingerprint}".encode()).hexdigest()[:12]
