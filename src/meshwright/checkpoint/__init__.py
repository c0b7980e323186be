"""Checkpoints: saved behind the loop, restored onto any mesh, in an open format that is checked when read."""

from meshwright.checkpoint._best import open_best
from meshwright.checkpoint._cast import Casts, cast_dtypes
from meshwright.checkpoint._checkpoints import Checkpoints
from meshwright.checkpoint._contents import Contents, Listed, contents
from meshwright.checkpoint._convert import called_as_ours, convert, rewritten
from meshwright.checkpoint._damage import Damage
from meshwright.checkpoint._diff import Difference, diff
from meshwright.checkpoint._directory import is_held, step_name
from meshwright.checkpoint._export_npz import export_npz
from meshwright.checkpoint._export_safetensors import export_safetensors
from meshwright.checkpoint._export_seqax import export_seqax
from meshwright.checkpoint._export_t5x import export_t5x, t5x_names
from meshwright.checkpoint._exported import source_of
from meshwright.checkpoint._format import HOST_NBYTES
from meshwright.checkpoint._lazy import LazyArray, concatenate, stack
from meshwright.checkpoint._load import load, load_lazily
from meshwright.checkpoint._match import Assign, origins
from meshwright.checkpoint._patterns import first_matches, optional
from meshwright.checkpoint._pins import is_pinned, pin, unpin
from meshwright.checkpoint._restore import restore, restore_lazily
from meshwright.checkpoint._retention import (
    Keep,
    Scores,
    always,
    any_of,
    best,
    everything,
    last,
    metrics_of,
    multiples,
    spaced,
)
from meshwright.checkpoint._source import Opened, Source, find_step, open_source
from meshwright.checkpoint._transforms import as_source, cast, subtree
from meshwright.checkpoint._verify import Report, verify, verify_all
from meshwright.checkpoint.readers import open_t5x, open_tensorflow

__all__ = [
    "HOST_NBYTES",
    "Assign",
    "Casts",
    "Checkpoints",
    "Contents",
    "Damage",
    "Difference",
    "Keep",
    "LazyArray",
    "Listed",
    "Opened",
    "Report",
    "Scores",
    "Source",
    "always",
    "any_of",
    "as_source",
    "best",
    "called_as_ours",
    "cast",
    "cast_dtypes",
    "concatenate",
    "contents",
    "convert",
    "diff",
    "everything",
    "export_npz",
    "export_safetensors",
    "export_seqax",
    "export_t5x",
    "find_step",
    "first_matches",
    "is_held",
    "is_pinned",
    "last",
    "load",
    "load_lazily",
    "metrics_of",
    "multiples",
    "open_best",
    "open_source",
    "open_t5x",
    "open_tensorflow",
    "optional",
    "origins",
    "pin",
    "restore",
    "restore_lazily",
    "rewritten",
    "source_of",
    "spaced",
    "stack",
    "step_name",
    "subtree",
    "t5x_names",
    "unpin",
    "verify",
    "verify_all",
]
