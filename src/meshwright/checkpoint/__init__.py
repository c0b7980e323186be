"""Checkpoints: saved behind the loop, restored onto any mesh, in an open format that is checked when read."""

from meshwright.checkpoint._checkpoints import Checkpoints
from meshwright.checkpoint._export import export_safetensors
from meshwright.checkpoint._restore import restore
from meshwright.checkpoint._retention import Keep, Scores, last
from meshwright.checkpoint._source import Source, open_source

__all__ = [
    "Checkpoints",
    "Keep",
    "Scores",
    "Source",
    "export_safetensors",
    "last",
    "open_source",
    "restore",
]
