"""The engine of every run: opens the run directory, checks the parts, runs the loop, and writes the record.

`_run` is a whole run in order. `_settings` and `_training` are what its callers pass in, `_open_run` the
resources that it opens, `_hooks` the functions that the loop calls. May import all rooms on lower floors;
does not know `Experiment` or `Trainer`. Add a setting to `_settings`, a check before the first step to
`_checks`, a reason to stop to `_stopping`, a file in the run directory to `_run_files` and `_directory`.
"""

from meshwright.engine._comparable import comparable_settings
from meshwright.engine._compiler import StepOptions, step_options
from meshwright.engine._describe import Difference, describe, differences
from meshwright.engine._directory import compiled_programs
from meshwright.engine._errors import errors_naming
from meshwright.engine._evaluate import evaluate
from meshwright.engine._evaluations import EvaluationPart, Evaluations, seconds_of
from meshwright.engine._kept_open import KeptOpen
from meshwright.engine._left_out import position_of_data
from meshwright.engine._open_run import checkpoints_for, newest_step, open_run
from meshwright.engine._outcome import Outcome
from meshwright.engine._policies import InformedWhen, Policy, WhenEvaluated, is_informed, when_evaluated
from meshwright.engine._rollback import without_left_out
from meshwright.engine._run import run_engine, train
from meshwright.engine._settings import Compile, Logging, Profile, Reporting, Saving, Settings, Watchdog
from meshwright.engine._spikes import Spikes
from meshwright.engine._stopping import EarlyStopping, Stop, StopEarly, early_stopping
from meshwright.engine._training import Data, Training, global_batch
from meshwright.engine._types import check_types

__all__ = [
    "Compile",
    "Data",
    "Difference",
    "EarlyStopping",
    "EvaluationPart",
    "Evaluations",
    "InformedWhen",
    "KeptOpen",
    "Logging",
    "Outcome",
    "Policy",
    "Profile",
    "Reporting",
    "Saving",
    "Settings",
    "Spikes",
    "StepOptions",
    "Stop",
    "StopEarly",
    "Training",
    "Watchdog",
    "WhenEvaluated",
    "check_types",
    "checkpoints_for",
    "comparable_settings",
    "compiled_programs",
    "describe",
    "differences",
    "early_stopping",
    "errors_naming",
    "evaluate",
    "global_batch",
    "is_informed",
    "newest_step",
    "open_run",
    "position_of_data",
    "run_engine",
    "seconds_of",
    "step_options",
    "train",
    "when_evaluated",
    "without_left_out",
]
