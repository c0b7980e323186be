"""What an evaluation finds: the loss and its metrics, and what the user makes of predictions."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import jax

from meshwright import process
from meshwright.arguments import by_name, declares
from meshwright.arrays import restore
from meshwright.checkpoint import open_best
from meshwright.engine import Look, looking
from meshwright.errors import UsageError, nearest
from meshwright.input import each_example, is_indexed, numbered_batches
from meshwright.predictor import Predictor
from meshwright.train import TrainState, Variables, eval_params, nothing, only_averages
from meshwright.trainer._evaluation import LossOver
from meshwright.trainer._recipe import Recipe
from meshwright.tree import PyTree
from meshwright.when import When

Scores = dict[str, float]
Best = Mapping[str, Literal["min", "max"]]
"""By which scores to keep the best checkpoint, and which values of them are best."""


class Scored(Protocol):
    """Scores of a state over examples, the same on all processes."""

    def __call__(self, state: TrainState, look: Look = nothing) -> Scores: ...

    def first(self, state: TrainState) -> Scores:
        """Return the scores over as few examples as can be computed at a time."""
        ...


@dataclasses.dataclass(frozen=True)
class OfLoss:
    """The loss and its metrics over examples."""

    loss_over: LossOver
    batches: Callable[[], Iterator[tuple[PyTree, range]]]
    """Returns an iterator as `numbered_batches` does."""

    def __call__(self, state: TrainState, look: Look = nothing) -> Scores:
        """Return the scores over all examples."""
        return self.loss_over(state, looking(self.batches(), look))

    def first(self, state: TrainState) -> Scores:
        """Return the scores over the first batch."""
        return self.loss_over(state, itertools.islice(self.batches(), 1))


class Evaluation:
    """The evaluation of a `fit` as the engine wants it: all scores, as `eval_loss` and so on."""

    name, prefix, field = "eval", "eval_", "eval_examples"

    def __init__(self, each: Sequence[Scored], when: When, best: Best, is_over: Callable[[], bool]):
        self._each, self._best, self._is_over = each, best, is_over
        self.when: When = lambda step: not is_over() and when(step)

    @property
    def at_end(self) -> bool:
        """True if it is made after the last step, too: not of a call that was finished before."""
        return not self._is_over()

    def __call__(self, step: int, state: TrainState, directory: Path | None, look: Look) -> Scores:
        """Return the scores by the names that reports give them."""
        return {eval_name(name): value for one in self._each for name, value in one(state, look).items()}

    def check(self, target: TrainState) -> str:
        """Return nothing: what is evaluated is tried with a state."""
        return ""

    def names(self) -> Sequence[str]:
        """Return nothing: only users' functions know."""
        return ()

    def first(self, state: TrainState) -> Scores:
        """Try all on few examples, and return what they found.

        Raises:
          UsageError: two of them have a score of one name, or there is none to keep the best by.
        """
        found: Scores = {}
        for scores in (one.first(state) for one in self._each):
            if twice := found.keys() & scores.keys():
                raise UsageError(
                    f"the metric function returned {min(twice)!r}, which the loss has already.\n"
                    "  Give it another name."
                )
            found |= scores
        check_best(self._best, list(found))
        return {eval_name(name): value for name, value in found.items()}


class OfPredictions:
    """What `metric_fn(examples=..., preds=...)` returns, computed by process 0 for all.

    Args:
      predict: `(state, examples, batch_size, look) -> predictions`, collective; it looks before each batch.
      batch_size: over all devices; so many examples are tried at first.

    Raises:
      UsageError: `metric_fn` asks for other arguments; or, when called, returns no numbers by name.
    """

    def __init__(
        self,
        predict: Callable[[TrainState, Any, int, Look], Sequence[Any]],
        metric_fn: Callable[..., Any],
        examples: Any,
        batch_size: int,
    ):
        self._metric_fn = by_name(metric_fn, ("examples", "preds"), "metric function", ("preds",))
        self._predict, self._batch_size = predict, batch_size
        # A metric is to compare predictions with the examples, not with a function that makes them.
        self._examples = listed(examples) if declares(metric_fn, "examples") else examples

    def __call__(self, state: TrainState, look: Look = nothing) -> Scores:
        """Return what the metric function makes of all predictions."""
        return self._of(state, self._examples, look)

    def first(self, state: TrainState) -> Scores:
        """Return what it makes of the predictions for one batch."""
        return self._of(state, head(self._examples, self._batch_size), nothing)

    def _of(self, state: TrainState, examples: Any, look: Look) -> Scores:
        preds = self._predict(state, examples, self._batch_size, look)
        return process.on_lead(lambda: _numbers(self._metric_fn(examples=examples, preds=preds)))


def scored(
    recipe: Recipe,
    examples: Any,
    batch_size: int,
    predictor: Predictor | None,
    metric_fn: Callable[..., Any] | None,
) -> list[Scored]:
    """Return what scores a state over examples: the loss, and what is made of predictions."""
    if examples is None:
        return []
    each: list[Scored] = []
    if recipe.loss_over is not None:
        sharding = recipe.layout.batch_sharding
        read = partial(numbered_batches, examples, batch_size, sharding, collate=recipe.collate)
        each.append(OfLoss(recipe.loss_over, read))
    if predictor is not None and metric_fn is not None:
        each.append(OfPredictions(predictor.of_state, metric_fn, examples, batch_size))
    return each


def best_of(directory: Path, target: TrainState, score: str, mode: Literal["min", "max"]) -> Variables:
    """Return what was evaluated of the checkpoint with the best score. Collective.

    Raises:
      CheckpointError: no checkpoint has this score.
    """
    wanted = dataclasses.replace(target, opt_state=only_averages(target.opt_state))
    state = restore(open_best(directory, eval_name(score), mode), wanted, ignore=".*")
    return Variables(eval_params(state), state.model_state)


def eval_name(name: str) -> str:
    """Return what a score of evaluation is called in reports and checkpoints."""
    return f"eval_{name}"


def check_together(examples: Any, predictor: Any, metric_fn: Any) -> None:
    """Raise a `UsageError` if what evaluates predictions is there in part."""
    if (predictor is None) != (metric_fn is None) or (predictor is not None and examples is None):
        raise UsageError("eval_examples, eval_predictor and eval_metric_fn go together: give all three.")


def check_best(best: Best, names: Sequence[str]) -> None:
    """Raise a `UsageError` if a score to keep the best by is none of `names`."""
    for name in best:
        if name not in names:
            close = nearest(name, names)
            raise UsageError(
                f"best={{{name!r}: …}}: there is no such score."
                f"{f' Did you mean {close!r}?' if close else ''}\n"
                f"  Evaluation gives {', '.join(names) or 'none: give eval_examples'}."
            )


def listed(examples: Any) -> Any:
    """Return `examples` that can be indexed as they are, and all others as a list."""
    return examples if is_indexed(examples) else list(each_example(examples))


def head(examples: Any, num_examples: int) -> Any:
    """Return the first examples, in the form that all are in."""
    if isinstance(examples, Mapping):
        return jax.tree.map(lambda x: x[:num_examples], dict(examples))
    if hasattr(examples, "select"):  # a data set of Hugging Face, of which metrics may want columns
        return examples.select(range(min(num_examples, len(examples))))
    if is_indexed(examples):
        return [examples[i] for i in range(min(num_examples, len(examples)))]
    return list(itertools.islice(each_example(examples), num_examples))


def _numbers(found: Any) -> Scores:
    remedy = "it must return numbers by name, {'accuracy': 0.9}"
    if not isinstance(found, Mapping):
        raise UsageError(f"the metric function returned a {type(found).__name__}; {remedy}.")
    try:
        return {str(name): float(value) for name, value in found.items()}
    except (TypeError, ValueError) as error:
        raise UsageError(f"the metric function returned {found}; {remedy}: {error}.") from None
