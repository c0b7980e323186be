"""Our format of checkpoints, those of other systems, and their arrays.

_checkpoints, _saving, …   saving in the background, continuing, and retention
_host_memory/              checkpoints in the memory of hosts
_format/                   our format
_arrays/                   named arrays, read in parts, matched with a state, restored onto any mesh
_formats/                  checkpoints of other systems: a reader is a file in `_formats/readers`, and an
                           entry of `READERS`
"""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.checkpoints._arrays._diff import diff
    from meshwright.checkpoints._arrays._lazy import LazyArray, concatenate, stack
    from meshwright.checkpoints._arrays._restore import load, load_lazily, restore_lazily
    from meshwright.checkpoints._arrays._source import Source, as_source, cast, subtree
    from meshwright.checkpoints._choice import open_best
    from meshwright.checkpoints._exports import renamed
    from meshwright.checkpoints._formats._export_npz import export_npz
    from meshwright.checkpoints._formats._export_safetensors import export_safetensors
    from meshwright.checkpoints._formats._export_seqax import export_seqax
    from meshwright.checkpoints._formats._export_t5x import export_t5x
    from meshwright.checkpoints._formats._flat_tokens import flat_tokens
    from meshwright.checkpoints._formats._inspect import contents, is_pinned, pin, unpin, verify, verify_all
    from meshwright.checkpoints._formats._open import find_step, open_source
    from meshwright.checkpoints._formats.readers._t5 import open_tensorflow
    from meshwright.checkpoints._formats.readers._t5x import open_t5x
    from meshwright.checkpoints._host_memory._budget import InMemory
    from meshwright.checkpoints._retention import always, best, everything, keep_any, last, multiples, spaced
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "InMemory",
    "LazyArray",
    "Source",
    "always",
    "as_source",
    "best",
    "cast",
    "concatenate",
    "contents",
    "diff",
    "everything",
    "export_npz",
    "export_safetensors",
    "export_seqax",
    "export_t5x",
    "find_step",
    "flat_tokens",
    "is_pinned",
    "keep_any",
    "last",
    "load",
    "load_lazily",
    "multiples",
    "open_best",
    "open_source",
    "open_t5x",
    "open_tensorflow",
    "pin",
    "renamed",
    "restore_lazily",
    "spaced",
    "stack",
    "subtree",
    "unpin",
    "verify",
    "verify_all",
]
