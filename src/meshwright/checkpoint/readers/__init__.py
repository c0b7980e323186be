"""Checkpoints of other systems, opened as sources.

A reader is three things: what the format is called, whether a place holds such a checkpoint, which is
seen from a few names or bytes, and how it is opened, which reads no array. A new one is a file here
and a word in the tuple below.
"""

from meshwright.checkpoint.readers import _safetensors
from meshwright.checkpoint.readers._reader import Foreign, Reader

READERS: tuple[Reader, ...] = (_safetensors.READER,)
"""In this order they are asked: the first that recognises a place opens it."""

__all__ = ["READERS", "Foreign", "Reader"]
