"""`EvaluationFunction`: an evaluation of a run by any function of the parameters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from meshwright.base._internal import PyTree, documented, explained_as
from meshwright.engine._evaluation._function import ParamsFunction
from meshwright.engine._policies import InformedWhen, is_informed
from meshwright.engine._types import check_types
from meshwright.processes._internal import When
from meshwright.training._internal import eval_params


@explained_as("engine.EvaluationFunction")
@documented
@dataclass(frozen=True)
class EvaluationFunction:
    """An evaluation by any function of the parameters, beside those of examples.

    The function gets the parameters as they are on the mesh, so it can call `mw.lm.score`, `mw.lm.generate`
    or `mw.lm.lm_eval`. It is called once before the first step, too, so that errors show then.

    Example:
      >>> def likelihood(params):
      ...     rows = mw.lm.score(model, params, held_out)
      ...     return {"log_likelihood": sum(row.log_likelihood for row in rows)}
      >>> mw.engine.EvaluationFunction(likelihood, when=1000).at_end
      True
    """

    is_known_by_place: ClassVar[bool] = True

    function: ParamsFunction
    """A function `(params)`, or `(params, model_state)` for a model with a state. It returns numbers by name.
    All processes call it."""
    when: int | When | InformedWhen = 500
    """The steps after which to evaluate, as in `Evaluation.when`."""
    dtype: str | None = "train"
    """The dtype of the parameters, as in `Evaluation.dtype`."""
    params: Callable[[Any], PyTree] = eval_params
    """A function that returns the parameters to evaluate, as in `Evaluation.params`."""
    at_end: bool = True
    """If true, the run also evaluates after its last step, whatever `when` says."""

    def __post_init__(self) -> None:
        check_types(self)
        is_informed(self.when)  # raises if it is not a policy
