"""A run described whole, as one frozen value, and run from Python or from a shell."""

from meshwright.experiment._adapt import Adapt, replace_prefix, truncate, truncate_left
from meshwright.experiment._ahead import AheadOfTime, compile_ahead, compile_parts, some_rows
from meshwright.experiment._averages import has_averages, open_averages
from meshwright.experiment._builders import chain, from_checkpoint
from meshwright.experiment._evaluate import evaluate, evaluate_checkpoint, state_of_checkpoint
from meshwright.experiment._experiment import Evaluation, Experiment, Input, Save, as_casts
from meshwright.experiment._generation import Generation
from meshwright.experiment._parts import Parts, parts_of
from meshwright.experiment._run import run
from meshwright.experiment._texts import Texts, texts_of_checkpoint

__all__ = [
    "Adapt",
    "AheadOfTime",
    "Evaluation",
    "Experiment",
    "Generation",
    "Input",
    "Parts",
    "Save",
    "Texts",
    "as_casts",
    "chain",
    "compile_ahead",
    "compile_parts",
    "evaluate",
    "evaluate_checkpoint",
    "from_checkpoint",
    "has_averages",
    "open_averages",
    "parts_of",
    "replace_prefix",
    "run",
    "some_rows",
    "state_of_checkpoint",
    "texts_of_checkpoint",
    "truncate",
    "truncate_left",
]
