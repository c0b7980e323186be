"""The names of `engine` that other packages use. They are loaded when they are first used."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.engine._adapters._bound import Bound
    from meshwright.engine._adapters._functional import Functional
    from meshwright.engine._describe import describe, differences
    from meshwright.engine._directory import compiled_programs
    from meshwright.engine._errors import errors_naming
    from meshwright.engine._evaluation._description import Evaluation, EvaluationFunction
    from meshwright.engine._evaluation._tokens import perplexity, token_means
    from meshwright.engine._experiment._auto import Planner, as_chosen, automatic, before_choice
    from meshwright.engine._experiment._builders import from_checkpoint, has_averages, open_averages
    from meshwright.engine._experiment._compile_ahead import (
        AheadOfTime,
        compile_ahead,
        compile_parts,
        some_rows,
    )
    from meshwright.engine._experiment._experiment import Experiment, Input
    from meshwright.engine._experiment._parts import Parts, loss_of, parts_of
    from meshwright.engine._experiment._run import (
        evaluate_checkpoint,
        on_devices,
        run,
        settings_for,
        state_of_checkpoint,
        training_of,
    )
    from meshwright.engine._exports._export import export, export_params
    from meshwright.engine._exports._load import load_program
    from meshwright.engine._exports._predictions import Program, predictions_of
    from meshwright.engine._open_run import checkpoints_for, newest_step
    from meshwright.engine._outcome import Outcome
    from meshwright.engine._policies import InformedWhen, is_informed
    from meshwright.engine._predict._outputs import fingerprint
    from meshwright.engine._predict._run import BatchedPredict
    from meshwright.engine._rollback import without_left_out
    from meshwright.engine._run import run_engine
    from meshwright.engine._samples import Sampler, Samples
    from meshwright.engine._settings import Compile, Logging, Profile, Save, as_casts
    from meshwright.engine._skipped_batches import position_of_data
    from meshwright.engine._stopping import Stop
    from meshwright.engine._training import Training
    from meshwright.engine._types import check_types
else:
    __getattr__, __dir__ = lazy_names(__name__)
