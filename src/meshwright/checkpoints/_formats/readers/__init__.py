"""Readers: they open checkpoints of other systems as sources.

A `Reader` has the name of a format, a test whether a path holds such a checkpoint (from a few names or
bytes), a function that opens it (without reading arrays), and one that lists the steps in a directory. To add
a format, add a file here and an entry to `READERS`.
"""

from meshwright.checkpoints._formats.readers import (
    _flax,
    _npz,
    _orbax,
    _redco,
    _safetensors,
    _seqax,
    _t5,
    _t5x,
)
from meshwright.checkpoints._formats.readers._orbax import TEMPORARY as ORBAX_TEMPORARY
from meshwright.checkpoints._formats.readers._reader import Foreign, Reader, opened
from meshwright.checkpoints._formats.readers._seqax import is_flat_tokens, open_flat_tokens, splits_of
from meshwright.checkpoints._formats.readers._t5 import open_tensorflow
from meshwright.checkpoints._formats.readers._t5x import open_t5x
from meshwright.checkpoints._formats.readers._tensorstore import store_of, telling, tensorstore_for

READERS: tuple[Reader, ...] = (
    _seqax.READER,
    _redco.READER,  # before Orbax's, as it consists of Orbax trees
    _orbax.READER,
    _t5x.READER,
    _t5.READER,
    # These are last, because such a file may lie beside another system's checkpoint.
    _safetensors.READER,
    _flax.READER,
    _npz.READER,
)
"""All readers, in order: the first that recognises a path opens it."""

__all__ = [
    "ORBAX_TEMPORARY",
    "READERS",
    "Foreign",
    "Reader",
    "is_flat_tokens",
    "open_flat_tokens",
    "open_t5x",
    "open_tensorflow",
    "opened",
    "splits_of",
    "store_of",
    "telling",
    "tensorstore_for",
]
