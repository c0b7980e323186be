"""`Evaluation` and `EvaluationFunction`: the evaluations of a run, as its user describes them."""

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax

from meshwright.base._internal import PyTree, documented, explained, explained_as, is_file_name
from meshwright.engine._evaluation._function import ParamsFunction
from meshwright.engine._evaluation._measured import Measure, StatefulMeasure
from meshwright.engine._evaluation._metric import PredictsState, check_metric
from meshwright.engine._policies import InformedWhen, is_informed
from meshwright.engine._types import check_least, check_types
from meshwright.errors import UsageError
from meshwright.processes._internal import When
from meshwright.training._internal import eval_params

OWN_LOSS = "loss"
"""The `measure` that stands for the loss of a `Trainer`."""
Outputs = Callable[..., Mapping[str, jax.Array]]
"""A function `(params, batch)`, or `(params, batch, model_state)`, that returns arrays by name. Each array
has a row for each example."""


@explained
@documented
@dataclass(frozen=True)
class Evaluation:
    """An evaluation. Each example is evaluated once. The last batch is padded, and padding is not counted.

    Example:
      >>> def error(params, batch):
      ...     return {"error": abs(params["w"] - batch["y"])}  # one value for each example
      >>> mw.Evaluation(error, {"y": np.ones(100)}, when=200).when
      200
    """

    is_known_by_place: ClassVar[bool] = True

    measure: Measure | StatefulMeasure | Literal["loss"] | None
    """A function `(params, batch)`, or `(params, batch, model_state)` for a model with a state. It returns
    values by name: one value, or an array of values, for each example. Their averages are the scores. An
    argument `step` gets the step of the state. "loss" stands for the loss of a `Trainer` and its metrics,
    computed with `train=False`. None if `metric_fn` returns all scores."""
    examples: Any
    """The examples, of the kinds that `Input.examples` lists."""
    when: int | When | InformedWhen | None = None
    """The steps after which to evaluate. A number means each time after so many steps. None means every 500
    steps, and in `Trainer.fit` the end of each epoch. A function may take the step, or the step and the
    values that the run reported last, by name: `lambda step, metrics: metrics.get("loss", inf) < 2`. It is
    also called for step 0, without values. A run that is killed and continued evaluates at the same steps."""
    batch_size: int | None = None
    """The number of examples in a batch, over all devices. None means 256, or the next number that the mesh
    can split; in `Trainer.fit`, that of training. A loader that has its own keeps that, as a `DataLoader`
    does."""
    dtype: str | None = "train"
    """The dtype to compute in, as in `Experiment.compute_dtype`. "train" means that dtype, and None the
    parameters' own dtypes."""
    params: Callable[[Any], PyTree] = eval_params
    """A function that returns the parameters to evaluate, given the state. By default they are the averages,
    if the optimizer keeps some (`mw.training.keep_ema`). `lambda state: state.params` evaluates the
    parameters themselves."""
    outputs: Outputs | None = None
    """A function `(params, batch)`, or `(params, batch, model_state)`, that returns arrays by name, with a
    row for each example. They are written to `outputs/NAME/step_00000100.jsonl` in the run directory, one
    line for each example."""
    at_end: bool = True
    """If true, the run also evaluates after its last step, whatever `when` says."""
    predict: Callable[..., PyTree] | PredictsState | None = None
    """A function `(params, batch)`, or `(params, batch, model_state)`, that returns arrays with a row for
    each example, or a `Predictor`: the predictions for `metric_fn`."""
    metric_fn: Callable[..., Mapping[str, float]] | None = None
    """A function that returns scores that are not averages, as numbers by name. Process 0 computes them for
    all processes. It may have any of these arguments: `examples`; `preds`, the predictions for them in the
    same order; `scores`, the averages of `measure`; and `step`. For example
    `lambda examples, preds: {"f1": f1_score(examples["label"], preds)}`, or, without `predict`,
    `lambda scores: {"perplexity": math.exp(scores["nll"])}`."""

    def __post_init__(self) -> None:
        check_types(self)
        check_least(1, self, "when", "batch_size")
        is_informed(self.when)  # raises if it is not a policy
        names = "Evaluation.metric_fn", "Evaluation.predict"
        check_metric(self.metric_fn, self.predict, has_scores=self.measure is not None, names=names)
        if self.measure is None and self.metric_fn is None:
            raise UsageError("Evaluation has no scores: give measure, or predict and metric_fn.")


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
    when: int | When | InformedWhen | None = None
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


def check_names(evaluations: Mapping[str, Any], field: str) -> None:
    """Check that the names of evaluations can be names of folders, for their `outputs`."""
    known: dict[str, str] = {}
    for name in evaluations:
        if not is_file_name(name):
            raise UsageError(
                f"{field}: {name!r} cannot be a folder's name, and each evaluation needs one. "
                'Give a name of printable characters without "/", such as "test".'
            )
        other = known.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if other != name:
            raise UsageError(f"{field}: {other!r} and {name!r} are one name on some disks. Rename one.")
