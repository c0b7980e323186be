"""The evaluation of a state: its averages, its metric function and its output files together."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshwright.base._internal import PyTree, in_order
from meshwright.engine._evaluation._batches import BeforeBatch, Scores, calling_before_each
from meshwright.engine._evaluation._measured import held_by
from meshwright.engine._evaluation._metric import Metric, as_scores
from meshwright.processes import _internal as processes
from meshwright.training._internal import ComputeDtype, eval_params, narrowing, nothing


class Scoring:
    """The scores of a state over some examples, the same on all processes. Collective."""

    def __init__(
        self,
        mean: Callable[[Any, Iterable[Any]], Scores] | None,
        read: Callable[[], Iterator[Any]],
        metric: Metric | None,
        *,
        outputs: Callable[[Path, int, Any, BeforeBatch], None] | None = None,
        num_examples: int | None = None,
        check: Callable[[Any], Sequence[str] | None] = lambda target: None,
    ):
        self._mean, self._read, self._metric, self._outputs = mean, read, metric, outputs
        self._check = check
        self.num_examples = num_examples
        self.names: tuple[str, ...] | None = None
        """The names of the scores; None until they are known."""

    def __call__(
        self, state: Any, step: int = 0, directory: Path | None = None, before_batch: BeforeBatch = nothing
    ) -> Scores:
        """Return the scores over all examples, and write the output files."""
        scores = self._scores(state, before_batch, is_trial=False)
        if self._outputs is not None and directory is not None:
            self._outputs(directory, step, state, before_batch)
        return scores

    def check(self, target: Any) -> bool:
        """Trace with structs of the state, and return whether anything could be traced."""
        names = self._check(target)
        if names is not None and self._metric is None:
            self.names = tuple(names)
        return names is not None

    def first(self, state: Any) -> Scores:
        """Return the scores over the first batch of examples, as a trial."""
        scores = self._scores(state, nothing, is_trial=True)
        self.names = tuple(scores)
        return scores

    def _scores(self, state: Any, before_batch: BeforeBatch, *, is_trial: bool) -> Scores:
        scores: Scores = {}
        if self._mean is not None:
            batches = self._read()
            if is_trial:  # the second one may show that the first is no whole batch
                batches = iter(list(itertools.islice(batches, 2))[:1])
            scores = self._mean(state, calling_before_each(batches, before_batch))
        if self._metric is None:
            return scores
        return scores | self._metric(state, scores, before_batch, is_trial=is_trial)


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
