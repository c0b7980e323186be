"""Numbers, trackers and profiles.

_mean, _kinds, …           values that a step reports
_console, _jsonl, …        writers, one file for each: a context manager that yields a function of a step and
                           its values
_events                    TensorBoard's files, read without TensorFlow
_profile/                  profiles of some steps, and the time in them
"""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.observe._clearml import clearml
    from meshwright.observe._console import Console
    from meshwright.observe._events import read_scalars
    from meshwright.observe._histogram import Histogram
    from meshwright.observe._jsonl import jsonl, read_jsonl
    from meshwright.observe._kinds import Image, Values, numbers
    from meshwright.observe._log import logger
    from meshwright.observe._mlflow import mlflow
    from meshwright.observe._profile._measure import summarize
    from meshwright.observe._profile._trace import tracer
    from meshwright.observe._tensorboard import tensorboard
    from meshwright.observe._trackio import trackio
    from meshwright.observe._values import merge
    from meshwright.observe._wandb import wandb
    from meshwright.observe._writers import behind, tee
    from meshwright.program._internal import (
        collectives,
        count_flops,
        flops,
        peak_flops,
        save_hlo,
        with_utilisation,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "Console",
    "Histogram",
    "Image",
    "Values",
    "behind",
    "clearml",
    "collectives",
    "count_flops",
    "flops",
    "jsonl",
    "logger",
    "merge",
    "mlflow",
    "numbers",
    "peak_flops",
    "read_jsonl",
    "read_scalars",
    "save_hlo",
    "summarize",
    "tee",
    "tensorboard",
    "tracer",
    "trackio",
    "wandb",
    "with_utilisation",
]
