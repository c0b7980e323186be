"""Checkpoints of all known formats: opening, verifying, listing, pinning and exporting them.

`readers` has one file for each format that can be read, and each `_export_….py` writes one format. May import
`checkpoint`, `arrays` and the rooms below them. To read another format, add a file with a `Reader` to
`readers` and name it in `READERS`. To write one, add an `_export_….py` that takes a source and a directory.
"""

from meshwright.formats._contents import Contents, Listed, contents
from meshwright.formats._export_npz import export_npz
from meshwright.formats._export_safetensors import export_safetensors
from meshwright.formats._export_seqax import export_seqax
from meshwright.formats._export_t5x import export_t5x, t5x_names
from meshwright.formats._flat_tokens import FlatTokens, flat_tokens
from meshwright.formats._open import find_step, open_source
from meshwright.formats._pins import is_pinned, pin, unpin
from meshwright.formats._safetensors import DTYPES as SAFETENSORS_DTYPES
from meshwright.formats._safetensors import write_file as write_safetensors
from meshwright.formats._verify import verify, verify_all
from meshwright.formats.readers import open_t5x, open_tensorflow

__all__ = [
    "SAFETENSORS_DTYPES",
    "Contents",
    "FlatTokens",
    "Listed",
    "contents",
    "export_npz",
    "export_safetensors",
    "export_seqax",
    "export_t5x",
    "find_step",
    "flat_tokens",
    "is_pinned",
    "open_source",
    "open_t5x",
    "open_tensorflow",
    "pin",
    "t5x_names",
    "unpin",
    "verify",
    "verify_all",
    "write_safetensors",
]
