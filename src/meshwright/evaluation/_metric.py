"""Scores that are no averages: a user's function of all examples, all predictions and the averages at once.

def metric_fn(examples, preds):                  F1, AUC, BLEU: whatever needs all predictions together
    return {"f1": f1_score(examples["label"], preds)}

def metric_fn(scores):                           what follows from averages and is none itself
    return {"perplexity": math.exp(scores["loss"])}
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from meshwright import process
from meshwright.arguments import by_name, declares
from meshwright.errors import UsageError
from meshwright.evaluation._look import Look
from meshwright.evaluation._means import Scores
from meshwright.input import each_example, is_indexed
from meshwright.train import nothing

Predict = Callable[[Any, Any, Look], Sequence[Any]]
"""`(state, examples, look) -> predictions`, one for each example in order; it looks before each batch.
Collective."""


def check_metric(
    function: Callable[..., Any] | None, predict: Any, *, has_scores: bool, names: tuple[str, str]
) -> None:
    """Check that a metric function and what makes predictions go together.

    Args:
      function: The metric function, if there is one.
      predict: What makes predictions, if anything does.
      has_scores: Whether something is averaged over the examples.
      names: What errors call the two.

    Raises:
      UsageError: One is there without the other, or the function asks for what there is not.
    """
    if function is None and predict is not None:
        raise UsageError(f"{names[1]} makes predictions for {names[0]}: give both.")
    if function is not None:
        if predict is None and declares(function, "preds"):
            raise UsageError(f"{names[0]} names `preds`: give {names[1]}, too, which makes them.")
        _called(function, predict is not None, has_scores)


def _called(function: Callable[..., Any], has_preds: bool, has_scores: bool) -> Callable[..., Any]:
    """Return a function of `examples`, `preds` and `scores` that passes on those that `function` names."""
    beside = {"preds": has_preds, "scores": has_scores}
    available = ("examples", *(name for name, is_there in beside.items() if is_there))
    return by_name(function, available, "metric function", ("preds" if has_preds else "scores",))


class Metric:
    """The scores of a metric function, computed by process 0 for all: `(state, scores) -> scores`.

    Collective.

    Args:
      function: Names any of `examples`, `preds` and `scores`, and returns numbers by name.
      examples: As `numbered_batches` takes them.
      batch_size: So many examples are tried at first.
      predict: What makes the predictions, if there are any.
      has_scores: Whether there are averages over the examples.
      name: What errors call the function.
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
        self._function = _called(function, predict is not None, has_scores)
        self._predict, self._batch_size, self._name = predict, batch_size, name
        # It is to compare predictions with the examples, not with a function that makes them.
        self._examples = _listed(examples) if declares(function, "examples") else examples

    def __call__(self, state: Any, scores: Scores, look: Look = nothing, *, is_trial: bool = False) -> Scores:
        """Return what the function returns; on trial, for the first batch alone.

        Raises:
          UsageError: It returns no numbers by name, or one by a name that an average has.
        """
        examples = _head(self._examples, self._batch_size) if is_trial else self._examples
        preds = None if self._predict is None else self._predict(state, examples, look)
        return process.on_lead(lambda: self._found(examples, preds, scores))

    def _found(self, examples: Any, preds: Any, scores: Scores) -> Scores:
        try:
            found = self._function(examples=examples, preds=preds, scores=dict(scores))
        except Exception as error:
            known = f", given scores called {', '.join(scores)}" if scores else ""
            error.add_note(f"in {self._name}{known}")
            raise
        more = _numbers(found, self._name)
        if taken := more.keys() & scores.keys():
            raise UsageError(
                f"{self._name} returned {min(taken)!r}, which is the name of an average over the examples.\n"
                "  Give it another name."
            )
        return more


def _listed(examples: Any) -> Any:
    """Return `examples` that can be indexed as they are, and all others as a list."""
    return examples if is_indexed(examples) else list(each_example(examples))


def _head(examples: Any, num_examples: int) -> Any:
    """Return the first examples, in the form that all are in."""
    if isinstance(examples, Mapping):
        return jax.tree.map(lambda x: x[:num_examples], dict(examples))
    if hasattr(examples, "select"):  # a data set of Hugging Face, of which metrics may want columns
        return examples.select(range(min(num_examples, len(examples))))
    if is_indexed(examples):
        return [examples[i] for i in range(min(num_examples, len(examples)))]
    return list(itertools.islice(each_example(examples), num_examples))


def _numbers(found: Any, name: str) -> Scores:
    remedy = "it must return numbers by name, {'accuracy': 0.9}"
    if not isinstance(found, Mapping):
        raise UsageError(f"{name} returned a {type(found).__name__}; {remedy}.")
    try:
        return {str(key): float(value) for key, value in found.items()}
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} returned {found}; {remedy}: {error}.") from None
