"""A checkpoint's model for other programs: its logits, the predictions of an evaluation, or a GGUF file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshwright.base._internal import PyTree
from meshwright.checkpoints._internal import local
from meshwright.engine._internal import (
    Experiment,
    Program,
    export,
    export_params,
    predictions_of,
    state_of_checkpoint,
)
from meshwright.errors import UsageError
from meshwright.lm._generation._model import Model, logits_of
from meshwright.lm._models import gguf
from meshwright.lm._runs._texts import generation_of_run
from meshwright.training._internal import eval_params, narrowing


def export_checkpoint(
    experiment: Experiment,
    to: str | Path,
    *,
    run: str | Path | None = None,
    checkpoint: int | str | None = None,
    evaluation: str | None = None,
    **options: Any,
) -> tuple[int, Path]:
    """Write what a checkpoint's model computes as a program for JAX alone; return the step and the path.

    A model that generates becomes a program from tokens to the logits of the next one, as
    `mw.lm.logits_of` says. Of another run the program is `Evaluation.predict`, of any number of
    examples. The parameters are those that are evaluated, in the dtype that is computed in.
    """
    to = local(to)  # raises before anything is read
    if to.suffix == ".gguf":
        return _as_gguf(experiment, to, run, checkpoint, options.get("context_length"))
    options.pop("context_length", None)
    describe = _program_of(experiment, evaluation)
    state = state_of_checkpoint(experiment, run, checkpoint)
    program, step = describe(state), int(state.step)
    if to.suffix == ".safetensors":
        return step, export_params(program.params, to)
    return step, export(program.function, program.params, program.inputs, to, constraints=program.constraints, **options)


def _as_gguf(
    experiment: Experiment,
    to: Path,
    run: str | Path | None,
    checkpoint: int | str | None,
    context_length: int | None,
) -> tuple[int, Path]:
    """Write a reference model for llama.cpp, with an adapter added to its weights."""
    generation = generation_of_run(experiment)
    if generation is None or generation.model.config is None:
        raise UsageError(
            "GGUF files are written of reference models, and the experiment does not say that it has one.\n"
            "  Add to it: samples=mw.lm.Generation(mw.lm.with_cache(cfg)), or call "
            "mw.lm.gguf.export_model(params, cfg, to)."
        )
    if not isinstance(generation.tokenizer, str | Path | None):
        raise UsageError(
            f"the run's tokenizer is an object, {type(generation.tokenizer).__name__}, and a GGUF file needs the "
            "files of one.\n  Give Generation the path of its folder; or, for a file without a tokenizer: "
            "mw.lm.gguf.export_model(params, cfg, to, context_length=…)."
        )
    state = state_of_checkpoint(experiment, run, checkpoint)
    plain = generation.model.plain or (lambda params: params)
    params = narrowing(experiment.compute_dtype)(plain(eval_params(state)))
    how = {"tokenizer": generation.tokenizer, "context_length": context_length}
    return int(state.step), gguf.export_model(params, generation.model.config, to, **how)


def _program_of(experiment: Experiment, evaluation: str | None) -> Callable[[Any], Program]:
    """Return the function that makes the program of a state."""
    generation = generation_of_run(experiment) if evaluation is None else None
    if generation is None:
        return predictions_of(experiment, evaluation)
    narrow, model = narrowing(experiment.compute_dtype), generation.model
    return lambda state: _logits(model, narrow(eval_params(state)))


def _logits(model: Model, params: PyTree) -> Program:
    row, inputs = "int32[batch, length]", "int32[batch, inputs]"
    shapes = row if model.encode is None else {"inputs": inputs, "lengths": "int32[batch]", "targets": row}
    limits = () if model.positions is None else (f"length <= {model.positions}",)
    return Program(logits_of(model), params, shapes, limits)
