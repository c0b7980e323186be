"""The predictions of an evaluation as a program for `export`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from meshwright.base._internal import PyTree, tree
from meshwright.data._internal import some_rows
from meshwright.engine._evaluation._description import Evaluation
from meshwright.engine._evaluation._measured import evaluating
from meshwright.engine._experiment._experiment import Experiment
from meshwright.engine._training import global_batch
from meshwright.errors import UsageError, listed
from meshwright.program._internal import jaxprs
from meshwright.training._internal import Variables, narrowing


class Program(NamedTuple):
    """The arguments of `export`."""

    function: Callable[[PyTree, PyTree], PyTree]
    params: PyTree
    inputs: PyTree
    constraints: tuple[str, ...] = ()


def predictions_of(experiment: Experiment, evaluation: str | None) -> Callable[[Any], Program]:
    """Return the function that makes the program of a state: the predictions of an evaluation.

    `evaluation` is its name; None takes the only one that predicts.
    """
    predicting = {
        name: one
        for name, one in experiment.evaluations.items()
        if isinstance(one, Evaluation) and callable(one.predict)
    }
    if evaluation is None and len(predicting) == 1:
        evaluation = next(iter(predicting))
    if evaluation not in predicting:
        asked = "" if evaluation is None else f" named {evaluation!r}"
        known = f"there are {listed(predicting)}: name one" if predicting else "there is none"
        raise UsageError(
            f"the experiment does not say what its model generates, and has no evaluation{asked} to export: "
            f"of evaluations with `predict`, {known}.\n  Add `samples=mw.lm.Generation(model)` or an "
            "`mw.Evaluation(predict=…)`; or, in Python: mw.engine.export(function, params, inputs, to)."
        )
    one = predicting[evaluation]
    dtype = experiment.compute_dtype if one.dtype == "train" else one.dtype
    return lambda state: _prediction(one, state, dtype)


def _prediction(one: Evaluation, state: Any, dtype: Any) -> Program:
    """Return the program of an evaluation's predictions; a model's state is among its parameters."""
    assert callable(one.predict)
    predict = evaluating(one.predict, params=lambda held: held.params)
    held = Variables(narrowing(dtype)(one.params(state)), state.model_state)
    batch = global_batch(some_rows(one.examples, 2), 2)
    inputs = jax.tree.map(_of_any_number, _used(predict, held, batch))
    if held.model_state is None:
        return Program(lambda params, batch: predict(Variables(params, None), batch), held.params, inputs)
    arrays = {"params": held.params, "model_state": held.model_state}
    return Program(lambda held, batch: predict(Variables(**held), batch), arrays, inputs)


def _used(predict: Callable[[Any, PyTree], PyTree], held: Variables, batch: PyTree) -> PyTree:
    """Return the batch without arrays that predictions do not need, such as labels, if it is a dictionary."""
    if not isinstance(batch, dict):
        return batch
    jaxpr = jax.make_jaxpr(predict)(tree.abstract(held), tree.abstract(batch)).jaxpr
    used = jaxprs.needed(jaxpr, jaxpr.outvars)
    leaves, structure = jax.tree.flatten(batch)
    is_used = structure.unflatten([x in used for x in jaxpr.invars[-len(leaves) :]])
    return {name: x for name, x in batch.items() if any(jax.tree.leaves(is_used[name]))}


def _of_any_number(rows: Any) -> str:
    """Return the text for any number of such rows."""
    return f"{rows.dtype.name}[{', '.join(['batch', *map(str, rows.shape[1:])])}]"
