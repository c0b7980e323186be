"""The names of `observe` that other packages use. They are loaded when they are first used."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.observe._bar import Bar
    from meshwright.observe._clearml import clearml
    from meshwright.observe._console import Console
    from meshwright.observe._events import read_scalars
    from meshwright.observe._histogram import Histogram
    from meshwright.observe._jsonl import (
        json_number,
        jsonl,
        newest_step,
        read_jsonl,
        salvage_jsonl,
        sync_jsonl,
    )
    from meshwright.observe._kinds import Image, Values, numbers
    from meshwright.observe._log import Log, logger
    from meshwright.observe._mean import Mean, widened
    from meshwright.observe._mlflow import mlflow
    from meshwright.observe._profile._measure import exchange_seconds, summarize
    from meshwright.observe._profile._scopes import ScopeTimes
    from meshwright.observe._profile._summary import DeviceTimes, Summary
    from meshwright.observe._profile._trace import Trace, tracer
    from meshwright.observe._profile._xplane import find_profiles
    from meshwright.observe._speed import StepTime
    from meshwright.observe._tensorboard import TensorBoard, tensorboard
    from meshwright.observe._trackers import Tracker, is_writer, open_trackers
    from meshwright.observe._trackio import trackio
    from meshwright.observe._values import Packed, merge
    from meshwright.observe._wandb import wandb
    from meshwright.observe._writers import Writer, screens_of, tee
else:
    __getattr__, __dir__ = lazy_names(__name__)
