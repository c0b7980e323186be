"""Checkpoints of other systems, opened as sources.

A reader is three things: what the format is called, whether a place holds such a checkpoint, which is
seen from a few names or bytes, and how it is opened, which reads no array. A new one is a file here
and a word in the tuple below.
"""

from meshwright.checkpoint.readers import _orbax, _redco, _safetensors, _t5, _t5x
from meshwright.checkpoint.readers._reader import Foreign, Reader
from meshwright.checkpoint.readers._t5x import open_t5x

READERS: tuple[Reader, ...] = (_redco.READER, _orbax.READER, _safetensors.READER, _t5x.READER, _t5.READER)
"""In this order they are asked: the first that recognises a place opens it."""

__all__ = ["READERS", "Foreign", "Reader", "open_t5x"]
