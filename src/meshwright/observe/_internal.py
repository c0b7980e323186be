"""The names of `observe` that other packages use. They are loaded when they are first used."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.observe._console import Bar, Console
    from meshwright.observe._jsonl import (
        json_number,
        jsonl,
        newest_step,
        read_jsonl,
        salvage_jsonl,
        sync_jsonl,
    )
    from meshwright.observe._kinds import Image, Values, numbers
    from meshwright.observe._log import Log, StepTime, logger
    from meshwright.observe._metrics import Histogram, Mean, widened
    from meshwright.observe._profile._scopes import ScopeTimes
    from meshwright.observe._profile._summary import DeviceTimes, Summary, exchange_seconds, summarize
    from meshwright.observe._profile._trace import Trace, tracer
    from meshwright.observe._profile._xplane import find_profiles
    from meshwright.observe._tensorboard import TensorBoard, read_scalars, tensorboard
    from meshwright.observe._trackers import (
        Tracker,
        clearml,
        is_writer,
        mlflow,
        open_trackers,
        trackio,
        wandb,
    )
    from meshwright.observe._values import Packed, merge
    from meshwright.observe._writers import Writer, screens_of, tee
else:
    __getattr__, __dir__ = lazy_names(__name__)
