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
from meshwright.checkpoints._formats.readers._reader import Reader

READERS: tuple[Reader, ...] = (
    _seqax.READER,
    # Before Orbax's, as it consists of Orbax trees.
    _redco.READER,
    _orbax.READER,
    _t5x.READER,
    _t5.READER,
    # These are last, because such a file may lie beside another system's checkpoint.
    _safetensors.READER,
    _flax.READER,
    _npz.READER,
)
"""All readers, in order: the first that recognises a path opens it."""
