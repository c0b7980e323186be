"""A run described whole, as one frozen value, and run from Python or from a shell."""

from meshwright.experiment._adapt import Adapt, replace_prefix, truncate, truncate_left
from meshwright.experiment._ahead import AheadOfTime, compile_parts, some_rows
from meshwright.experiment._alike import settings_of
from meshwright.experiment._averages import open_averages
from meshwright.experiment._builders import chain, from_checkpoint
from meshwright.experiment._describe import Difference, describe, differences
from meshwright.experiment._directory import checkpoints_of
from meshwright.experiment._experiment import Evaler, Experiment, Input, Save, as_casts
from meshwright.experiment._parts import Parts, naming, parts_of
from meshwright.experiment._policies import InformedWhen, when_evaluated
from meshwright.experiment._run import Outcome, run
from meshwright.experiment._stopping import no_better

__all__ = [
    "Adapt",
    "AheadOfTime",
    "Difference",
    "Evaler",
    "Experiment",
    "InformedWhen",
    "Input",
    "Outcome",
    "Parts",
    "Save",
    "as_casts",
    "chain",
    "checkpoints_of",
    "compile_parts",
    "describe",
    "differences",
    "from_checkpoint",
    "naming",
    "no_better",
    "open_averages",
    "parts_of",
    "replace_prefix",
    "run",
    "settings_of",
    "some_rows",
    "truncate",
    "truncate_left",
    "when_evaluated",
]
