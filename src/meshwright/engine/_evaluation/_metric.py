"""Scores that are not averages over examples: a user's function computes them from everything at once.

def metric_fn(examples, preds):                  F1, AUC, BLEU: scores that need all predictions
    return {"f1": f1_score(examples["label"], preds)}

def metric_fn(scores):                           scores that follow from averages
    return {"perplexity": math.exp(scores["loss"])}
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax

from meshwright.base._internal import by_name, declares
from meshwright.data._internal import each_example, is_indexed
from meshwright.engine._evaluation._interruption import BeforeBatch
from meshwright.engine._evaluation._means import Scores
from meshwright.errors import UsageError
from meshwright.processes import _internal as processes
from meshwright.training._internal import nothing

Predict = Callable[[Any, Any, BeforeBatch], Sequence[Any]]
"""`(state, examples, before_batch) -> predictions`, one for each example, in order. Collective.

It calls `before_batch` before each batch.
"""


@runtime_checkable
class PredictsState(Protocol):
    """A `Predictor`, which predicts by the parameters of a state."""

    def of_state(
        self, state: Any, examples: Any, batch_size: int, before_batch: BeforeBatch
    ) -> Sequence[Any]: ...


def check_metric(
    function: Callable[..., Any] | None, predict: Any, *, has_scores: bool, names: tuple[str, str]
) -> None:
    """Check that a metric function and a predict function fit together."""
    if function is None and predict is not None:
        raise UsageError(f"{names[1]} makes predictions for {names[0]}: give both.")
    if not (predict is None or callable(predict) or isinstance(predict, PredictsState)):
        raise UsageError(f"{names[1]} is of type {type(predict).__name__}; give a function or a Predictor.")
    if function is not None:
        if predict is None and declares(function, "preds"):
            raise UsageError(f"{names[0]} names `preds`: give {names[1]}, too, which makes them.")
        _by_name(function, predict is not None, has_scores)


def _by_name(function: Callable[..., Any], has_preds: bool, has_scores: bool) -> Callable[..., Any]:
    """Return a function of `examples`, `preds`, `scores` and `step` that passes on those that are named."""
    optional = {"preds": has_preds, "scores": has_scores}
    available = ("examples", *(name for name, is_available in optional.items() if is_available), "step")
    return by_name(function, available, "metric function", ("preds" if has_preds else "scores",))


class Metric:
    """The scores of a metric function: `(state, scores) -> scores`. Collective.

    Process 0 calls the function, and all processes get its scores.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        examples: Any,
        batch_size: int,
        predict: Predict | None,
        *,
        has_scores: bool,
        name: str,
    ):
        self._function = _by_name(function, predict is not None, has_scores)
        self._predict, self._batch_size, self._name = predict, batch_size, name
        # Examples may come as a function that yields them. The metric needs the examples themselves.
        self._examples = _as_indexed(examples) if declares(function, "examples") else examples

    def __call__(
        self, state: Any, scores: Scores, before_batch: BeforeBatch = nothing, *, is_trial: bool = False
    ) -> Scores:
        """Return the function's scores; on trial, those of the first `batch_size` examples."""
        examples = _head(self._examples, self._batch_size) if is_trial else self._examples
        preds = None if self._predict is None else self._predict(state, examples, before_batch)
        step = int(state.step) if hasattr(state, "step") else None  # a user's own state need not have one
        return processes.on_lead(lambda: self._call(examples, preds, scores, step))

    def _call(self, examples: Any, preds: Any, scores: Scores, step: int | None) -> Scores:
        try:
            returned = self._function(examples=examples, preds=preds, scores=dict(scores), step=step)
        except Exception as error:
            available = f", which was given the scores {', '.join(scores)}" if scores else ""
            error.add_note(f"in {self._name}{available}")
            raise
        more = as_scores(returned, self._name)
        if taken := more.keys() & scores.keys():
            raise UsageError(
                f"{self._name} returned {min(taken)!r}, which is the name of an average over the examples.\n"
                "  Give it another name."
            )
        return more


def _as_indexed(examples: Any) -> Any:
    """Return `examples` unchanged if they can be indexed, else as a list."""
    return examples if is_indexed(examples) else list(each_example(examples))


def _head(examples: Any, num_examples: int) -> Any:
    """Return the first examples, in the form that all are in."""
    if isinstance(examples, Mapping):
        return jax.tree.map(lambda x: x[:num_examples], dict(examples))
    if hasattr(examples, "select"):  # a Hugging Face dataset: metrics may need its columns
        return examples.select(range(min(num_examples, len(examples))))
    if is_indexed(examples):
        return [examples[i] for i in range(min(num_examples, len(examples)))]
    return list(itertools.islice(each_example(examples), num_examples))


def as_scores(returned: Any, name: str) -> Scores:
    expected = "it must return numbers by name, {'accuracy': 0.9}"
    if not isinstance(returned, Mapping):
        raise UsageError(f"{name} returned a value of type {type(returned).__name__}; {expected}.")
    try:
        return {str(key): float(value) for key, value in returned.items()}
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} returned {returned}; {expected}: {error}.") from None
