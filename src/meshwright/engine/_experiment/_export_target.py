"""A checkpoint's model as a program in one file: its logits, or the predictions of an evaluation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from meshwright.base._internal import PyTree, tree
from meshwright.checkpoints._internal import local
from meshwright.data._internal import some_rows
from meshwright.engine._evaluation._measured import evaluating
from meshwright.engine._experiment._evaluate import state_of_checkpoint
from meshwright.engine._experiment._experiment import Evaluation, Experiment
from meshwright.engine._experiment._texts import generation_of_run
from meshwright.engine._exports._export import export, export_params
from meshwright.engine._training import global_batch
from meshwright.errors import UsageError, listed
from meshwright.lm._internal import Model, gguf, logits_of
from meshwright.training._internal import Variables, eval_params, narrowing


class _Program(NamedTuple):
    function: Callable[[PyTree, PyTree], PyTree]
    params: PyTree
    inputs: PyTree
    constraints: tuple[str, ...] = ()


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
    `mw.lm._internal.logits_of` says. Of another run the program is `Evaluation.predict`, of any number of
    examples. The parameters are those that are evaluated, in the dtype that is computed in.
    """
    to = local(to)  # raises before anything is read
    if to.suffix == ".gguf":
        return _as_gguf(experiment, to, run, checkpoint, options.get("context_length"))
    options.pop("context_length", None)
    describe = _describing(experiment, evaluation)
    state = state_of_checkpoint(experiment, run, checkpoint)
    made, step = describe(state), int(state.step)
    if to.suffix == ".safetensors":
        return step, export_params(made.params, to)
    return step, export(made.function, made.params, made.inputs, to, constraints=made.constraints, **options)


def _as_gguf(
    experiment: Experiment,
    to: Path,
    run: str | Path | None,
    checkpoint: int | str | None,
    context_length: int | None,
) -> tuple[int, Path]:
    """Write a reference model for llama.cpp, with an adapter added to its weights."""
    given = generation_of_run(experiment)
    if given is None or given.model.config is None:
        raise UsageError(
            "GGUF files are written of reference models, and the experiment does not say that it has one.\n"
            "  Add to it: generation=mw.engine.Generation(mw.lm.with_cache(cfg)), or call "
            "mw.lm.gguf.export_model(params, cfg, to)."
        )
    if not isinstance(given.tokenizer, str | Path | None):
        raise UsageError(
            f"the run's tokenizer is an object, {type(given.tokenizer).__name__}, and a GGUF file needs the "
            "files of one.\n  Give Generation the path of its folder; or, for a file without a tokenizer: "
            "mw.lm.gguf.export_model(params, cfg, to, context_length=…)."
        )
    state = state_of_checkpoint(experiment, run, checkpoint)
    plain = given.model.plain or (lambda params: params)
    params = narrowing(experiment.compute_dtype)(plain(eval_params(state)))
    how = {"tokenizer": given.tokenizer, "context_length": context_length}
    return int(state.step), gguf.export_model(params, given.model.config, to, **how)


def _describing(experiment: Experiment, evaluation: str | None) -> Callable[[Any], _Program]:
    """Return the function that makes the program of a state."""
    predicting = {
        name: one
        for name, one in experiment.evaluations.items()
        if isinstance(one, Evaluation) and one.predict is not None
    }
    if evaluation is None:
        given = generation_of_run(experiment)
        if given is not None:
            params = lambda state: narrowing(experiment.compute_dtype)(eval_params(state))  # noqa: E731
            return lambda state: _logits(given.model, params(state))
        evaluation = next(iter(predicting)) if len(predicting) == 1 else None
    if evaluation not in predicting:
        asked = "" if evaluation is None else f" named {evaluation!r}"
        known = f"there are {listed(predicting)}: name one" if predicting else "there is none"
        raise UsageError(
            f"the experiment does not say what its model generates, and has no evaluation{asked} to export: "
            f"of evaluations with `predict`, {known}.\n  Add `generation=mw.engine.Generation(model)` or an "
            "`mw.Evaluation(predict=…)`; or, in Python: mw.engine.export(function, params, inputs, to)."
        )
    one = predicting[evaluation]
    dtype = experiment.compute_dtype if one.dtype == "train" else one.dtype
    return lambda state: _prediction(one, state, dtype)


def _logits(model: Model, params: PyTree) -> _Program:
    row, inputs = "int32[batch, length]", "int32[batch, inputs]"
    given = row if model.encode is None else {"inputs": inputs, "lengths": "int32[batch]", "targets": row}
    limits = () if model.positions is None else (f"length <= {model.positions}",)
    return _Program(logits_of(model), params, given, limits)


def _prediction(one: Evaluation, state: Any, dtype: Any) -> _Program:
    """Return the program of an evaluation's predictions; a model's state is among its parameters."""
    assert one.predict is not None
    predict = evaluating(one.predict, params=lambda held: held.params)
    held = Variables(narrowing(dtype)(one.params(state)), state.model_state)
    batch = global_batch(some_rows(one.examples, 2), 2)
    inputs = jax.tree.map(_of_any_number, _used(predict, held, batch))
    if held.model_state is None:
        return _Program(lambda params, batch: predict(Variables(params, None), batch), held.params, inputs)
    arrays = {"params": held.params, "model_state": held.model_state}
    return _Program(lambda held, batch: predict(Variables(**held), batch), arrays, inputs)


def _used(predict: Callable[[Any, PyTree], PyTree], held: Variables, batch: PyTree) -> PyTree:
    """Return the batch without arrays that predictions do not need, such as labels, if it is a dictionary."""
    if not isinstance(batch, dict):
        return batch
    jaxpr = jax.make_jaxpr(predict)(tree.abstract(held), tree.abstract(batch)).jaxpr
    used = {id(x) for equation in jaxpr.eqns for x in equation.invars} | {id(x) for x in jaxpr.outvars}
    leaves, structure = jax.tree.flatten(batch)
    is_used = structure.unflatten([id(x) in used for x in jaxpr.invars[-len(leaves) :]])
    return {name: x for name, x in batch.items() if any(jax.tree.leaves(is_used[name]))}


def _of_any_number(rows: Any) -> str:
    """Return the text for any number of such rows."""
    return f"{rows.dtype.name}[{', '.join(['batch', *map(str, rows.shape[1:])])}]"
