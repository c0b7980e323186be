"""Checkpoints: saved behind the loop, restored onto any mesh, in an open format that is checked when read."""

from meshwright.checkpoint._checkpoints import Checkpoints
from meshwright.checkpoint._lazy import LazyArray, stack
from meshwright.checkpoint._restore import restore, restore_lazily
from meshwright.checkpoint._retention import Keep, Scores, last
from meshwright.checkpoint._source import Source, open_source
from meshwright.checkpoint._transforms import as_source, cast, subtree

__all__ = [
    "Checkpoints",
    "Keep",
    "LazyArray",
    "Scores",
    "Source",
    "as_source",
    "cast",
    "last",
    "open_source",
    "restore",
    "restore_lazily",
    "stack",
    "subtree",
]
