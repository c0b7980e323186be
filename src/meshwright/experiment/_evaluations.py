"""The evaluations of an experiment, from their description."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from meshwright.engine import Evaluation, global_batch, naming
from meshwright.evaluation import Measured, Metric, OutputFiles, RowsOver, Scoring
from meshwright.experiment._experiment import Evaler, Experiment
from meshwright.input import local_rows, num_examples, padded_batches, some_rows
from meshwright.sharding import Layout
from meshwright.tree import PyTree


def evaluations_of(experiment: Experiment, layout: Layout) -> list[Evaluation]:
    """Return the evaluations of an experiment.

    Raises:
      UsageError: a dtype is none.
    """
    return [_evaluation(experiment, name, layout) for name in experiment.evaluations]


def _evaluation(experiment: Experiment, name: str, layout: Layout) -> Evaluation:
    evaler, field = experiment.evaluations[name], f"evaluations.{name}"
    examples, size, parts = evaler.examples, evaler.batch_size, _Parts(experiment, evaler, layout, field)
    metric = None
    if evaler.metric_fn is not None:
        predict = None if parts.predict is None else parts.predict.of_each
        given = {"has_scores": evaler.measure is not None, "name": f"{field}.metric_fn"}
        metric = Metric(evaler.metric_fn, examples, size, predict, **given)
    with naming(field):
        number = num_examples(examples)
    scoring = Scoring(
        parts.measure,
        partial(padded_batches, examples, size, layout.batch_sharding),
        metric,
        outputs=parts.outputs,
        num_examples=number,
        check=parts.check,
    )
    return Evaluation(name, f"{name}/", f"{field}.measure", evaler.when, scoring, lambda: evaler.at_end)


class _Parts:
    """The functions of an `Evaler`, each over all examples; None for those that it lacks."""

    def __init__(self, experiment: Experiment, evaler: Evaler, layout: Layout, field: str):
        self._evaler, self._layout, self._field = evaler, layout, field
        dtype = experiment.compute_dtype if evaler.dtype == "train" else evaler.dtype
        chosen: dict[str, Any] = {"compute_dtype": dtype, "params": evaler.params}

        def rows(function: Callable[..., PyTree] | None) -> RowsOver | None:
            if function is None:
                return None
            return RowsOver(function, evaler.batch_size, layout, experiment.seed, **chosen)

        with naming(f"{field}.dtype"):
            self.measure = None if evaler.measure is None else Measured(evaler.measure, layout, **chosen)
            self.predict, outputs = rows(evaler.predict), rows(evaler.outputs)
        self.outputs = None if outputs is None else OutputFiles(outputs, evaler.examples)

    def check(self, target: Any) -> Sequence[str]:
        """Try the functions on structs of state and batch, and return the names of what is measured.

        Raises:
          UsageError: one returns something that has no value for each example.
        """
        with naming(self._field):
            batch = _first_batch(self._evaler, self._layout)
        names: Sequence[str] = ()
        if self.measure is not None:
            with naming(f"{self._field}.measure"):
                names = self.measure.check(target, batch)
        for part, rows in {"predict": self.predict, "outputs": self.outputs}.items():
            if rows is not None:
                with naming(f"{self._field}.{part}"):
                    rows.check(target, batch)
        return names


def _first_batch(evaler: Evaler, layout: Layout) -> PyTree:
    local_rows(evaler.batch_size, layout.batch_sharding)  # raises if it does not divide
    return global_batch(some_rows(evaler.examples, evaler.batch_size), evaler.batch_size)
