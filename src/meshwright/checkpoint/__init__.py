"""Checkpoints in Meshwright's own open format: saved in the background, kept by a policy, verified when read.

`Checkpoints` is a directory that one run holds open. `_format` reads and writes the files, `_saving` is one
save, `_retention` has the policies, `_directory` and `_remote` the names in a directory or a store, `_tier`
the checkpoints in the memory of the hosts. May import `arrays` and ground rooms. Add a policy to
`_retention`. Change the files in `_format`, together with docs/checkpoint-format.md. Other formats are read
and written in `formats`.
"""

from meshwright.checkpoint._checkpoints import Checkpoints
from meshwright.checkpoint._choice import chosen_step, open_best
from meshwright.checkpoint._convert import called_as_ours, convert, rewritten
from meshwright.checkpoint._directory import (
    PINNED,
    aside,
    complete_steps,
    is_locked,
    saved_steps,
    set_aside_after,
    step_name,
    step_path,
    temporaries,
    why_aside,
)
from meshwright.checkpoint._format import (
    HOST_NBYTES,
    MANIFEST,
    Damage,
    NativeSource,
    Report,
    incomplete,
    native_report,
    read_manifest,
)
from meshwright.checkpoint._of_run import checkpoints_of, settings_at
from meshwright.checkpoint._retention import (
    Keep,
    always,
    best,
    everything,
    keep_any,
    last,
    metrics_of,
    multiples,
    spaced,
)
from meshwright.checkpoint._scores import Mode, kept_by, mode_of, score_and_mode
from meshwright.checkpoint._staging import UNFINISHED, staged
from meshwright.checkpoint._tier import InMemory

__all__ = [
    "HOST_NBYTES",
    "MANIFEST",
    "PINNED",
    "UNFINISHED",
    "Checkpoints",
    "Damage",
    "InMemory",
    "Keep",
    "Mode",
    "NativeSource",
    "Report",
    "always",
    "aside",
    "best",
    "called_as_ours",
    "checkpoints_of",
    "chosen_step",
    "complete_steps",
    "convert",
    "everything",
    "incomplete",
    "is_locked",
    "keep_any",
    "kept_by",
    "last",
    "metrics_of",
    "mode_of",
    "multiples",
    "native_report",
    "open_best",
    "read_manifest",
    "rewritten",
    "saved_steps",
    "score_and_mode",
    "set_aside_after",
    "settings_at",
    "spaced",
    "staged",
    "step_name",
    "step_path",
    "temporaries",
    "why_aside",
]
