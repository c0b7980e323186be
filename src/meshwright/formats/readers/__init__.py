"""Checkpoints of other systems, opened as sources.

A reader is what the format is called, whether a place holds such a checkpoint, which is seen from a few
names or bytes, how it is opened, which reads no array, and which steps there are in a directory. A new one
is a file here and a word in the tuple below.
"""

from meshwright.formats.readers import _flax, _npz, _orbax, _redco, _safetensors, _seqax, _t5, _t5x
from meshwright.formats.readers._orbax import TEMPORARY as ORBAX_TEMPORARY
from meshwright.formats.readers._reader import Foreign, Reader, opened
from meshwright.formats.readers._t5 import open_tensorflow
from meshwright.formats.readers._t5x import open_t5x
from meshwright.formats.readers._tensorstore import store_of, telling, tensorstore_for

READERS: tuple[Reader, ...] = (
    _seqax.READER,
    _redco.READER,  # whose parts are Orbax's
    _orbax.READER,
    _t5x.READER,
    _t5.READER,
    # These are asked last, as such a file may lie beside another system's checkpoint.
    _safetensors.READER,
    _flax.READER,
    _npz.READER,
)
"""In this order they are asked: the first that recognises a place opens it."""

__all__ = [
    "ORBAX_TEMPORARY",
    "READERS",
    "Foreign",
    "Reader",
    "open_t5x",
    "open_tensorflow",
    "opened",
    "store_of",
    "telling",
    "tensorstore_for",
]
