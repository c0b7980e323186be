"""Metrics of a run: means, histograms, and the writers that report them.

`logger` makes the `log` of a training loop. It passes each report to a `Writer`. `jsonl`, `tensorboard`,
`Console` and the trackers are writers; so is any function of a step and its values. Metrics are the same on
every process, so only one process should write them: give the others `tee()`, which writes nothing. This
room may import the ground rooms, `program` and `hlo`. To add a tracker, add a file with a context manager
that yields a `Writer`.
"""

from meshwright.metrics._bar import Bar
from meshwright.metrics._clearml import clearml
from meshwright.metrics._console import Console
from meshwright.metrics._histogram import Histogram
from meshwright.metrics._jsonl import json_number, jsonl, newest_step, read_jsonl, salvage_jsonl, sync_jsonl
from meshwright.metrics._kinds import Image, Values, numbers
from meshwright.metrics._log import Log, logger
from meshwright.metrics._mean import Mean, widened
from meshwright.metrics._mlflow import mlflow
from meshwright.metrics._numbers import duration, number
from meshwright.metrics._speed import StepTime
from meshwright.metrics._tensorboard import TensorBoard, tensorboard
from meshwright.metrics._trackers import Tracker, is_writer, open_trackers
from meshwright.metrics._trackio import trackio
from meshwright.metrics._values import Metrics, Packed, merge
from meshwright.metrics._wandb import wandb
from meshwright.metrics._writers import Screen, Writer, behind, screens_of, tee

__all__ = [
    "Bar",
    "Console",
    "Histogram",
    "Image",
    "Log",
    "Mean",
    "Metrics",
    "Packed",
    "Screen",
    "StepTime",
    "TensorBoard",
    "Tracker",
    "Values",
    "Writer",
    "behind",
    "clearml",
    "duration",
    "is_writer",
    "json_number",
    "jsonl",
    "logger",
    "merge",
    "mlflow",
    "newest_step",
    "number",
    "numbers",
    "open_trackers",
    "read_jsonl",
    "salvage_jsonl",
    "screens_of",
    "sync_jsonl",
    "tee",
    "tensorboard",
    "trackio",
    "wandb",
    "widened",
]
