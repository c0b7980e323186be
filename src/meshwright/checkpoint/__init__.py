"""Checkpoints: saved behind the loop, restored onto any mesh, in an open format that is checked when read."""

from meshwright.checkpoint._checkpoints import Checkpoints
from meshwright.checkpoint._pins import is_pinned, pin, unpin
from meshwright.checkpoint._restore import restore
from meshwright.checkpoint._retention import (
    Keep,
    Scores,
    always,
    any_of,
    best,
    everything,
    last,
    multiples,
    spaced,
)
from meshwright.checkpoint._source import Source, open_source

__all__ = [
    "Checkpoints",
    "Keep",
    "Scores",
    "Source",
    "always",
    "any_of",
    "best",
    "everything",
    "is_pinned",
    "last",
    "multiples",
    "open_source",
    "pin",
    "restore",
    "spaced",
    "unpin",
]
