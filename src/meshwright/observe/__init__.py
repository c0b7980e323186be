"""Numbers, trackers and profiles.

_metrics, _kinds, …        values that a step reports
_console, _jsonl, …        writers: context managers that yield a function of a step and its values
_trackers                  writers to the services of others
_profile/                  profiles of some steps, and their times
"""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.observe._console import Console
    from meshwright.observe._jsonl import jsonl, read_jsonl
    from meshwright.observe._kinds import Image, Values, numbers
    from meshwright.observe._log import logger
    from meshwright.observe._metrics import Histogram
    from meshwright.observe._profile._summary import summarize
    from meshwright.observe._profile._trace import tracer
    from meshwright.observe._tensorboard import read_scalars, tensorboard
    from meshwright.observe._trackers import clearml, mlflow, trackio, wandb
    from meshwright.observe._values import merge
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
