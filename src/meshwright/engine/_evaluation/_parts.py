"""The evaluations of a run, made into parts for the engine: those of an experiment and of a trainer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from meshwright.base._internal import PyTree
from meshwright.data._internal import (
    Collate,
    batch_size_of,
    facts_of,
    local_rows,
    num_examples,
    numbered_batches,
    padded_batches,
    some_rows,
)
from meshwright.engine._errors import errors_naming
from meshwright.engine._evaluation._description import OWN_LOSS, Evaluation, EvaluationFunction
from meshwright.engine._evaluation._files import OutputFiles
from meshwright.engine._evaluation._function import scoring_by_function
from meshwright.engine._evaluation._interruption import BeforeBatch
from meshwright.engine._evaluation._loss import AverageLoss
from meshwright.engine._evaluation._measured import Measured
from meshwright.engine._evaluation._metric import Metric, Predict, PredictsState
from meshwright.engine._evaluation._rows import ExampleFunction
from meshwright.engine._evaluation._scoring import Scoring
from meshwright.engine._evaluations import EvaluationPart
from meshwright.engine._samples import NAME as SAMPLES
from meshwright.engine._samples import Sampler, samples_part
from meshwright.engine._training import global_batch
from meshwright.errors import UsageError
from meshwright.parallel._internal import Layout
from meshwright.training._internal import ComputeDtype

_USUAL_SIZE = 256


@dataclass(frozen=True)
class Common:
    """What all evaluations of a run share."""

    layout: Layout
    """The mesh, which splits the batches."""
    seed: int
    """The seed of the run."""
    compute_dtype: ComputeDtype
    """The dtype in which the run computes its loss."""
    batch_size: int | None = None
    """The size of a batch of evaluations that give none; None means 256, or the next that the mesh splits."""
    collate: Collate | None = None
    """A function that makes a batch from a list of examples."""
    average_loss: Callable[[Evaluation], AverageLoss] | None = None
    """Returns the function that averages the loss of a trainer over examples; None if there is none."""


def evaluation_parts(
    evaluations: Mapping[str, Evaluation | EvaluationFunction], samples: Sampler | None, common: Common
) -> list[EvaluationPart]:
    """Return the evaluations of a run, and its samples."""
    parts = [_evaluation(name, one, common) for name, one in evaluations.items()]
    if samples is None or samples.num_samples == 0:
        return parts
    if SAMPLES in evaluations:
        raise UsageError(f"samples has the name of evaluations.{SAMPLES}: rename that evaluation.")
    return [*parts, samples_part(samples, common.compute_dtype, common.seed)]


def evaluation_facts(evaluations: Mapping[str, Evaluation | EvaluationFunction]) -> dict[str, dict[str, str]]:
    """Return facts on the examples of each evaluation that must be the same on all processes."""
    facts = {}
    for name, one in evaluations.items():
        if isinstance(one, Evaluation):
            with errors_naming(f"evaluations.{name}"):
                facts[f"evaluations.{name}"] = facts_of(one.examples)
    return facts


def _evaluation(name: str, one: Evaluation | EvaluationFunction, common: Common) -> EvaluationPart:
    field = f"evaluations.{name}"
    if isinstance(one, EvaluationFunction):
        scoring, scored_by = _scoring_by_function(one, field, common), f"{field}.function"
    else:
        scoring, scored_by = _Parts(one, field, common).scoring(), f"{field}.measure"
    return EvaluationPart(name, f"{name}/", scored_by, one.when, scoring, lambda: one.at_end)


def _scoring_by_function(one: EvaluationFunction, field: str, common: Common) -> Scoring:
    dtype = common.compute_dtype if one.dtype == "train" else one.dtype
    with errors_naming(f"{field}.dtype"):
        return scoring_by_function(one.function, f"{field}.function", compute_dtype=dtype, params=one.params)


class _Parts:
    """The functions of an `Evaluation`, each applied to all examples. None stands for a missing function."""

    def __init__(self, one: Evaluation, field: str, common: Common):
        self._one, self._field, self._common, layout = one, field, common, common.layout
        usual = common.batch_size or _USUAL_SIZE + -_USUAL_SIZE % layout.batch_ways
        self._size = size = batch_size_of(one.examples, one.batch_size or usual)
        dtype = common.compute_dtype if one.dtype == "train" else one.dtype
        chosen: dict[str, Any] = {"compute_dtype": dtype, "params": one.params}

        def rows(function: Callable[..., PyTree] | PredictsState | None) -> ExampleFunction | None:
            if not callable(function):
                return None
            return ExampleFunction(function, size, layout, common.seed, **chosen, collate=common.collate)

        with errors_naming(f"{field}.dtype"):
            self._measure = Measured(one.measure, layout, **chosen) if callable(one.measure) else None
            self._predict, self._outputs = rows(one.predict), rows(one.outputs)
        self._files = None if self._outputs is None else OutputFiles(self._outputs, one.examples)

    def scoring(self) -> Scoring:
        """Return the function that scores a state."""
        one, common = self._one, self._common
        is_own = one.measure == OWN_LOSS
        read = partial(
            numbered_batches if is_own else padded_batches,
            one.examples,
            self._size,
            common.layout.batch_sharding,
            collate=common.collate,
        )
        metric = None
        if one.metric_fn is not None:
            options = {"has_scores": one.measure is not None, "name": f"{self._field}.metric_fn"}
            metric = Metric(one.metric_fn, one.examples, self._size, self._predictions(), **options)
        with errors_naming(self._field):
            number = num_examples(one.examples)
        return Scoring(
            self._average_loss() if is_own else self._measure,
            read,
            metric,
            outputs=self._files,
            num_examples=number,
            check=self._check,
        )

    def _average_loss(self) -> AverageLoss:
        if self._common.average_loss is None:
            raise UsageError(
                f'{self._field}.measure is "{OWN_LOSS}", but there is no loss of a Trainer.\n'
                "  Give a function (params, batch) that returns {'loss': values}, one for each example, or "
                "predict and metric_fn."
            )
        return self._common.average_loss(self._one)

    def _predictions(self) -> Predict | None:
        predictor, size = self._one.predict, self._size
        if isinstance(predictor, PredictsState):

            def of_state(state: Any, examples: Any, before_batch: BeforeBatch) -> Sequence[Any]:
                return predictor.of_state(state, examples, size, before_batch)

            return of_state
        return None if self._predict is None else self._predict.of_each

    def _check(self, target: Any) -> Sequence[str] | None:
        """Trace the functions for the structs of a state and a batch, and return the names of the scores.

        The loss of a trainer and a `Predictor` are tried with the first examples instead.
        """
        one, layout = self._one, self._common.layout
        functions = {"predict": self._predict, "outputs": self._files}
        names: Sequence[str] = ()
        if self._measure is not None or any(functions.values()):
            with errors_naming(self._field):
                rows = some_rows(one.examples, self._size, layout.batch_sharding, self._common.collate)
                local_rows(self._size, layout.batch_sharding)  # raises if the batch cannot be split
                batch = global_batch(rows, self._size)
            if self._measure is not None:
                with errors_naming(f"{self._field}.measure"):
                    names = self._measure.check(target, batch, rows)
            for part, function in functions.items():
                if function is not None:
                    with errors_naming(f"{self._field}.{part}"):
                        function.check(target, batch)
        is_untraced = one.measure == OWN_LOSS or isinstance(one.predict, PredictsState)
        return None if is_untraced else names
