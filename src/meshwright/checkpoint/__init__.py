"""Checkpoints: saved behind the loop, restored onto any mesh, in an open format that is checked when read."""

from meshwright.checkpoint._checkpoints import Checkpoints
from meshwright.checkpoint._convert import convert
from meshwright.checkpoint._diff import Difference, diff
from meshwright.checkpoint._restore import restore
from meshwright.checkpoint._retention import Keep, Scores, last
from meshwright.checkpoint._source import Source, open_source
from meshwright.checkpoint._verify import Damage, Report, verify

__all__ = [
    "Checkpoints",
    "Damage",
    "Difference",
    "Keep",
    "Report",
    "Scores",
    "Source",
    "convert",
    "diff",
    "last",
    "open_source",
    "restore",
    "verify",
]
