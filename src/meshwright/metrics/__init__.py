"""What a run tells about itself: means over steps, and the writers that receive them.

`logger` makes the loop's `log`. It hands plain numbers to a `Writer`; `jsonl`, `tensorboard` and
`Console` are the writers here, and any function of a step and its values is another. Metrics are
the same on every process, so only one should write them: the others are given `tee()`, the
writer that writes nothing.
"""

from meshwright.metrics._bar import progress
from meshwright.metrics._console import Console
from meshwright.metrics._halt import halting
from meshwright.metrics._jsonl import json_number, jsonl, read_jsonl
from meshwright.metrics._log import Log, logger
from meshwright.metrics._tensorboard import tensorboard
from meshwright.metrics._values import Mean, Metrics, Packed, merge
from meshwright.metrics._wandb import wandb
from meshwright.metrics._writers import Writer, tee

__all__ = [
    "Console",
    "Log",
    "Mean",
    "Metrics",
    "Packed",
    "Writer",
    "halting",
    "json_number",
    "jsonl",
    "logger",
    "merge",
    "progress",
    "read_jsonl",
    "tee",
    "tensorboard",
    "wandb",
]
