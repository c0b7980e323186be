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
from meshwright.processes._internal import When
from meshwright.training._internal import ComputeDtype

_USUAL_SIZE = 256


@dataclass(frozen=True)
class EvaluationContext:
    """What all evaluations of a run share, and the values for those that give none."""

    layout: Layout
    """The mesh, which splits the batches."""
    seed: int
    """The seed of the run."""
    compute_dtype: ComputeDtype
    """The dtype in which the run computes its loss."""
    batch_size: int | None = None
    """The usual size of a batch; None means 256, or the next number that the mesh splits."""
    when: When | None = None
    """The usual policy; None means every 500 steps."""
    collate: Collate | None = None
    """A function that makes a batch of a list of examples; None stacks them."""
    average_loss: Callable[[ComputeDtype, Callable[[Any], PyTree]], AverageLoss] | None = None
    """Returns the function that averages the loss of a trainer over examples, given a dtype and a function
    that returns the parameters to evaluate; None if there is no such loss."""


def evaluation_parts(
    evaluations: Mapping[str, Evaluation | EvaluationFunction],
    samples: Sampler | None,
    context: EvaluationContext,
) -> list[EvaluationPart]:
    """Return the evaluations of a run, and its samples."""
    parts = [_evaluation(name, one, context) for name, one in evaluations.items()]
    if samples is None or samples.num_samples == 0:
        return parts
    if SAMPLES in evaluations:
        raise UsageError(f"samples has the name of evaluations.{SAMPLES}: rename that evaluation.")
    return [*parts, samples_part(samples, context.compute_dtype, context.seed)]


def evaluation_facts(evaluations: Mapping[str, Evaluation | EvaluationFunction]) -> dict[str, dict[str, str]]:
    """Return facts on the examples of each evaluation that must be the same on all processes."""
    facts = {}
    for name, one in evaluations.items():
        if isinstance(one, Evaluation):
            with errors_naming(f"evaluations.{name}"):
                facts[f"evaluations.{name}"] = facts_of(one.examples)
    return facts


def scoring_of(one: Evaluation | EvaluationFunction, field: str, context: EvaluationContext) -> Scoring:
    """Return the function that scores a state by an evaluation, which errors call `field`."""
    if isinstance(one, Evaluation):
        return _Parts(one, field, context).scoring()
    dtype = context.compute_dtype if one.dtype == "train" else one.dtype
    with errors_naming(f"{field}.dtype"):
        return scoring_by_function(one.function, f"{field}.function", compute_dtype=dtype, params=one.params)


def _evaluation(
    name: str, one: Evaluation | EvaluationFunction, context: EvaluationContext
) -> EvaluationPart:
    field = f"evaluations.{name}"
    scored_by = f"{field}.{'measure' if isinstance(one, Evaluation) else 'function'}"
    when = context.when if one.when is None else one.when
    scoring = scoring_of(one, field, context)
    return EvaluationPart(name, f"{name}/", scored_by, when, scoring, lambda: one.at_end)


class _Parts:
    """The functions of an `Evaluation`, each applied to all examples. None stands for a missing function."""

    def __init__(self, one: Evaluation, field: str, context: EvaluationContext):
        self._one, self._field, self._context, layout = one, field, context, context.layout
        usual = context.batch_size or _USUAL_SIZE + -_USUAL_SIZE % layout.batch_ways
        self._size = size = batch_size_of(one.examples, one.batch_size or usual)
        dtype = context.compute_dtype if one.dtype == "train" else one.dtype
        chosen: dict[str, Any] = {"compute_dtype": dtype, "params": one.params}

        def rows(function: Callable[..., PyTree] | PredictsState | None) -> ExampleFunction | None:
            if not callable(function):
                return None
            return ExampleFunction(function, size, layout, context.seed, **chosen, collate=context.collate)

        self._average_loss = self._measured = None
        if one.measure == OWN_LOSS and context.average_loss is None:
            raise UsageError(
                f'{field}.measure is "{OWN_LOSS}", but there is no loss of a Trainer.\n'
                "  Give a function (params, batch) that returns {'loss': values}, one for each example, or "
                "predict and metric_fn."
            )
        with errors_naming(f"{field}.dtype"):
            if callable(one.measure):
                self._measured = Measured(one.measure, layout, **chosen)
            elif one.measure is not None and context.average_loss is not None:
                self._average_loss = context.average_loss(dtype, one.params)
            self._predict, outputs = rows(one.predict), rows(one.outputs)
        self._outputs = None if outputs is None else OutputFiles(outputs, one.examples)

    def scoring(self) -> Scoring:
        """Return the function that scores a state."""
        one, context, metric = self._one, self._context, None
        read = partial(
            # The average of a loss needs the numbers of the examples, that of a measure their weights.
            padded_batches if self._average_loss is None else numbered_batches,
            one.examples,
            self._size,
            context.layout.batch_sharding,
            collate=context.collate,
        )
        if one.metric_fn is not None:
            options = {"has_scores": one.measure is not None, "name": f"{self._field}.metric_fn"}
            metric = Metric(one.metric_fn, one.examples, self._size, self._predictions(), **options)
        with errors_naming(self._field):
            number = num_examples(one.examples)
        return Scoring(
            self._average_loss or self._measured,
            read,
            metric,
            outputs=self._outputs,
            num_examples=number,
            check=self._check,
        )

    def _predictions(self) -> Predict | None:
        predictor, size = self._one.predict, self._size
        if not isinstance(predictor, PredictsState):
            return None if self._predict is None else self._predict.of_each

        def of_state(state: Any, examples: Any, before_batch: BeforeBatch) -> Sequence[Any]:
            return predictor.of_state(state, examples, size, before_batch)

        return of_state

    def _check(self, target: Any) -> Sequence[str] | None:
        """Trace the functions for the structs of a state and a batch, and return the names of the scores.

        The loss of a trainer and a `Predictor` are not traced, but tried with the first examples; None then.
        """
        one, sharding = self._one, self._context.layout.batch_sharding
        functions = {
            name: function
            for name, function in (("predict", self._predict), ("outputs", self._outputs))
            if function is not None
        }
        names: Sequence[str] = ()
        if self._measured is not None or functions:
            with errors_naming(self._field):
                rows = some_rows(one.examples, self._size, sharding, self._context.collate)
                local_rows(self._size, sharding)  # raises if the batch cannot be split
                batch = global_batch(rows, self._size)
            if self._measured is not None:
                with errors_naming(f"{self._field}.measure"):
                    names = self._measured.check(target, batch, rows)
            for name, function in functions.items():
                with errors_naming(f"{self._field}.{name}"):
                    function.check(target, batch)
        is_traced = self._average_loss is None and not isinstance(one.predict, PredictsState)
        return names if is_traced else None
