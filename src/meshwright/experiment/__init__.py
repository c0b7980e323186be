"""A run described whole, as one frozen value, and run from Python or from a shell."""

from meshwright.experiment._adapt import Adapt, replace_prefix, truncate, truncate_left
from meshwright.experiment._ahead import AheadOfTime, compile_ahead, compile_parts, some_rows
from meshwright.experiment._auto import as_chosen, automatic, before_choice
from meshwright.experiment._averages import has_averages, open_averages
from meshwright.experiment._builders import chain, from_checkpoint
from meshwright.experiment._evaluate import evaluate, evaluate_checkpoint, state_of_checkpoint
from meshwright.experiment._experiment import Evaluation, Experiment, Input, Save, as_casts
from meshwright.experiment._exported import export_checkpoint
from meshwright.experiment._function import EvaluationFunction
from meshwright.experiment._generated import generation_part
from meshwright.experiment._generation import Generation
from meshwright.experiment._parts import Parts, loss_of, parts_of
from meshwright.experiment._run import on_devices, run, settings_for, training_of
from meshwright.experiment._served import served_of_checkpoint
from meshwright.experiment._texts import Texts, generation_of_run, texts_of_checkpoint

__all__ = [
    "Adapt",
    "AheadOfTime",
    "Evaluation",
    "EvaluationFunction",
    "Experiment",
    "Generation",
    "Input",
    "Parts",
    "Save",
    "Texts",
    "as_casts",
    "as_chosen",
    "automatic",
    "before_choice",
    "chain",
    "compile_ahead",
    "compile_parts",
    "evaluate",
    "evaluate_checkpoint",
    "export_checkpoint",
    "from_checkpoint",
    "generation_of_run",
    "generation_part",
    "has_averages",
    "loss_of",
    "on_devices",
    "open_averages",
    "parts_of",
    "replace_prefix",
    "run",
    "served_of_checkpoint",
    "settings_for",
    "some_rows",
    "state_of_checkpoint",
    "texts_of_checkpoint",
    "training_of",
    "truncate",
    "truncate_left",
]
