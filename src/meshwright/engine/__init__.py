"""The engine of every run: it opens the run, checks its parts, runs the loop, and writes record and page."""

from meshwright.engine._alike import OWN, settings_of
from meshwright.engine._describe import Difference, describe, differences
from meshwright.engine._evaluate import evaluate
from meshwright.engine._evaluations import EvaluationPart, Evaluations, seconds_of
from meshwright.engine._held import Held
from meshwright.engine._naming import naming
from meshwright.engine._opened import open_run
from meshwright.engine._outcome import Outcome
from meshwright.engine._policies import InformedWhen, Policy, WhenEvaluated, is_informed, when_evaluated
from meshwright.engine._run import run, train
from meshwright.engine._settings import Compile, Logging, Profile, Reporting, Saving, Settings, Watchdog
from meshwright.engine._stopping import Stop, StopEarly, early_stopping
from meshwright.engine._training import Data, Training, global_batch
from meshwright.engine._types import check_types

__all__ = [
    "OWN",
    "Compile",
    "Data",
    "Difference",
    "EvaluationPart",
    "Evaluations",
    "Held",
    "InformedWhen",
    "Logging",
    "Outcome",
    "Policy",
    "Profile",
    "Reporting",
    "Saving",
    "Settings",
    "Stop",
    "StopEarly",
    "Training",
    "Watchdog",
    "WhenEvaluated",
    "check_types",
    "describe",
    "differences",
    "early_stopping",
    "evaluate",
    "global_batch",
    "is_informed",
    "naming",
    "open_run",
    "run",
    "seconds_of",
    "settings_of",
    "train",
    "when_evaluated",
]
