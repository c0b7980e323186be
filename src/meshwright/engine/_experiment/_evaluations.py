"""The parts of an experiment's evaluations."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from meshwright.base._internal import PyTree
from meshwright.data._internal import batch_size_of, local_rows, num_examples, padded_batches, some_rows
from meshwright.engine._errors import errors_naming
from meshwright.engine._evaluation._files import OutputFiles
from meshwright.engine._evaluation._function import scoring_by_function
from meshwright.engine._evaluation._measured import Measured
from meshwright.engine._evaluation._metric import Metric
from meshwright.engine._evaluation._rows import ExampleFunction
from meshwright.engine._evaluation._scoring import Scoring
from meshwright.engine._evaluations import EvaluationPart
from meshwright.engine._experiment._experiment import USUAL_SIZE, Evaluation, Experiment
from meshwright.engine._experiment._function import EvaluationFunction
from meshwright.engine._samples import NAME as SAMPLES
from meshwright.engine._samples import samples_part
from meshwright.engine._training import global_batch
from meshwright.errors import UsageError
from meshwright.parallel._internal import Layout


def evaluations_of(experiment: Experiment, layout: Layout) -> list[EvaluationPart]:
    """Return the evaluations of an experiment."""
    each = [_evaluation(experiment, name, layout) for name in experiment.evaluations]
    sampler = experiment.samples
    if sampler is None or sampler.num_samples == 0:
        return each
    if SAMPLES in experiment.evaluations:
        raise UsageError(f"Experiment.samples has the name of evaluations.{SAMPLES}: rename that evaluation.")
    return [*each, samples_part(sampler, experiment.compute_dtype, experiment.seed)]


def _evaluation(experiment: Experiment, name: str, layout: Layout) -> EvaluationPart:
    one, field = experiment.evaluations[name], f"evaluations.{name}"
    if isinstance(one, EvaluationFunction):
        return _by_function(experiment, one, name, field)
    usual = USUAL_SIZE + -USUAL_SIZE % layout.batch_ways
    size = usual if one.batch_size == USUAL_SIZE else one.batch_size
    one = replace(one, batch_size=batch_size_of(one.examples, size))
    examples, size, parts = one.examples, one.batch_size, _Parts(experiment, one, layout, field)
    metric = None
    if one.metric_fn is not None:
        predict = None if parts.predict is None else parts.predict.of_each
        given = {"has_scores": one.measure is not None, "name": f"{field}.metric_fn"}
        metric = Metric(one.metric_fn, examples, size, predict, **given)
    with errors_naming(field):
        number = num_examples(examples)
    scoring = Scoring(
        parts.measure,
        partial(padded_batches, examples, size, layout.batch_sharding),
        metric,
        outputs=parts.outputs,
        num_examples=number,
        check=parts.check,
    )
    return EvaluationPart(name, f"{name}/", f"{field}.measure", one.when, scoring, lambda: one.at_end)


def _by_function(experiment: Experiment, one: EvaluationFunction, name: str, field: str) -> EvaluationPart:
    dtype = experiment.compute_dtype if one.dtype == "train" else one.dtype
    with errors_naming(f"{field}.dtype"):
        scoring = scoring_by_function(
            one.function, f"{field}.function", compute_dtype=dtype, params=one.params
        )
    return EvaluationPart(name, f"{name}/", f"{field}.function", one.when, scoring, lambda: one.at_end)


class _Parts:
    """The functions of an `Evaluation`, each applied to all examples. None stands for a missing function."""

    def __init__(self, experiment: Experiment, one: Evaluation, layout: Layout, field: str):
        self._one, self._layout, self._field = one, layout, field
        dtype = experiment.compute_dtype if one.dtype == "train" else one.dtype
        chosen: dict[str, Any] = {"compute_dtype": dtype, "params": one.params}

        def rows(function: Callable[..., PyTree] | None) -> ExampleFunction | None:
            if function is None:
                return None
            return ExampleFunction(function, one.batch_size, layout, experiment.seed, **chosen)

        with errors_naming(f"{field}.dtype"):
            self.measure = None if one.measure is None else Measured(one.measure, layout, **chosen)
            self.predict, outputs = rows(one.predict), rows(one.outputs)
        self.outputs = None if outputs is None else OutputFiles(outputs, one.examples)

    def check(self, target: Any) -> Sequence[str]:
        """Trace the functions for the structs of a state and a batch, and return the names of the scores."""
        with errors_naming(self._field):
            rows = some_rows(self._one.examples, self._one.batch_size, self._layout.batch_sharding)
            batch = _first_batch(self._one, self._layout, rows)
        names: Sequence[str] = ()
        if self.measure is not None:
            with errors_naming(f"{self._field}.measure"):
                names = self.measure.check(target, batch, rows)
        for part, function in {"predict": self.predict, "outputs": self.outputs}.items():
            if function is not None:
                with errors_naming(f"{self._field}.{part}"):
                    function.check(target, batch)
        return names


def _first_batch(one: Evaluation, layout: Layout, rows: PyTree) -> PyTree:
    local_rows(one.batch_size, layout.batch_sharding)  # raises if the batch cannot be split
    return global_batch(rows, one.batch_size)
