"""Checkpoints: saved behind the loop, kept by a policy, in an open format that is checked when read."""

from meshwright.checkpoint._best import open_best
from meshwright.checkpoint._checkpoints import Checkpoints
from meshwright.checkpoint._convert import called_as_ours, convert, rewritten
from meshwright.checkpoint._damage import Damage, incomplete
from meshwright.checkpoint._directory import (
    PINNED,
    aside,
    complete_steps,
    is_held,
    set_aside_after,
    step_name,
    step_path,
    temporaries,
    why_aside,
)
from meshwright.checkpoint._format import HOST_NBYTES, MANIFEST, NativeSource, read_manifest
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
from meshwright.checkpoint._staging import UNFINISHED, staged
from meshwright.checkpoint._verify import Report, native_report

__all__ = [
    "HOST_NBYTES",
    "MANIFEST",
    "PINNED",
    "UNFINISHED",
    "Checkpoints",
    "Damage",
    "Keep",
    "NativeSource",
    "Report",
    "Scores",
    "always",
    "any_of",
    "aside",
    "best",
    "called_as_ours",
    "complete_steps",
    "convert",
    "everything",
    "incomplete",
    "is_held",
    "last",
    "metrics_of",
    "multiples",
    "native_report",
    "open_best",
    "read_manifest",
    "rewritten",
    "set_aside_after",
    "spaced",
    "staged",
    "step_name",
    "step_path",
    "temporaries",
    "why_aside",
]
