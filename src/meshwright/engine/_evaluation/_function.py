"""Scores that any function of the parameters computes, such as the tasks of a benchmark."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from meshwright.base._internal import PyTree, in_order
from meshwright.engine._evaluation._means import Scores
from meshwright.engine._evaluation._measured import held_by
from meshwright.engine._evaluation._metric import as_scores
from meshwright.engine._evaluation._scoring import Scoring
from meshwright.processes import _internal as processes
from meshwright.training._internal import ComputeDtype, eval_params, narrowing

ParamsFunction = Callable[..., Mapping[str, float]]
"""`(params) -> {name: number}`, or `(params, model_state)` for a model with a state. All processes call it,
and the numbers of process 0 count."""


def scoring_by_function(
    function: ParamsFunction,
    name: str,
    *,
    compute_dtype: ComputeDtype = None,
    params: Callable[[Any], PyTree] = eval_params,
) -> Scoring:
    """Return the scoring of a state by a function of its parameters, which are on the mesh of the run.

    A run calls it once before its first step, so that errors show and its scores are known.
    """
    narrow = narrowing(compute_dtype)

    def scores(state: Any, batches: Iterable[Any]) -> Scores:
        for _ in batches:  # here the run may interrupt the evaluation
            pass
        values = {"params": narrow(params(state)), **held_by(state, "model_state")}
        call = in_order(function, values, named=held_by(state, "step"), optional="model_state")
        return processes.agree(as_scores(call(), name))

    return Scoring(scores, lambda: iter((None,)), None)
