"""The evaluation of a `Trainer`: its examples, its loss, predictor and metric function, and its scores."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from meshwright.checkpoints._internal import Mode, open_best, restore
from meshwright.data._internal import batch_size_of, numbered_batches
from meshwright.engine._evaluation._interruption import BeforeBatch
from meshwright.engine._evaluation._metric import Metric, check_metric
from meshwright.engine._evaluation._scoring import Scoring
from meshwright.engine._predictor._predictor import Predictor
from meshwright.engine._trainer._recipe import Recipe
from meshwright.errors import UsageError
from meshwright.training._internal import TrainState, Variables, eval_params, only_averages

PREFIX = "eval/"
"""The prefix of the names of scores in reports and checkpoints."""
Best = Mapping[str, Mode]
"""The scores by which the best checkpoint is kept, each with its mode, "min" or "max"."""


def full_name(score: str, others: Iterable[str] = ()) -> str:
    """Return the name of a score in reports and checkpoints, given this or the name that `fit` returns."""
    return score if score.startswith((PREFIX, *(f"{name}/" for name in others))) else PREFIX + score


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """The examples to evaluate on, and the functions that score them."""

    recipe: Recipe
    """The parts of the trainer that do not depend on the examples."""
    examples: Any
    """The examples to evaluate on, or None."""
    batch_size: int
    """The number of examples in a batch, if the examples are not a loader that has its own."""
    loss: bool
    """True if the loss and its metrics are among the scores."""
    predictor: Predictor | None
    """The predictor whose predictions go to `metric_fn`."""
    metric_fn: Callable[..., Any] | None
    """A function that returns further scores for all examples together."""
    prefix: str = ""
    """The prefix of the user's arguments in errors, such as `eval_`."""

    def __post_init__(self) -> None:
        p = self.prefix
        given = {"predictor": self.predictor is not None, "metric_fn": self.metric_fn is not None}
        for name, is_given in {**given, "loss=False": not self.loss}.items():
            if is_given and self.examples is None:
                raise UsageError(f"{p}examples and {p}{name} go together: give both.")
        names = f"{p}metric_fn", f"{p}predictor"
        check_metric(self.metric_fn, self.predictor, has_scores=self.has_averages, names=names)
        if self.examples is not None and self.metric_fn is None and not self.has_averages:
            raise UsageError(
                f"{p}examples are given, but no function to score them: give {p}predictor and {p}metric_fn, "
                f"or {'give Trainer a loss' if self.loss else f'leave out {p}loss=False'}."
            )

    @property
    def has_averages(self) -> bool:
        """True if the scores include the averages of a loss and its metrics."""
        return self.loss and bool(self.recipe.losses)

    def scoring(self) -> Scoring:
        """Return the function that scores a state, by the loss, its metrics and the metric function."""
        recipe, examples = self.recipe, self.examples
        size = batch_size_of(examples, self.batch_size)
        sharding = recipe.layout.batch_sharding
        read = partial(numbered_batches, examples, size, sharding, collate=recipe.collate)
        metric = None
        if self.metric_fn is not None:
            predict = None if self.predictor is None else partial(_predictions, self.predictor, size)
            given = {"has_scores": self.has_averages, "name": "the metric function"}
            metric = Metric(self.metric_fn, examples, size, predict, **given)
        mean = recipe.average_loss if self.has_averages else None
        return Scoring(mean, read, metric)


def _predictions(
    predictor: Predictor, batch_size: int, state: TrainState, examples: Any, before_batch: BeforeBatch
) -> Sequence[Any]:
    return predictor.of_state(state, examples, batch_size, before_batch)


def best_of(directory: Path, target: TrainState, score: str | None, mode: Mode | None) -> Variables:
    """Return the evaluated parameters and model state of the checkpoint with the best score. Collective."""
    wanted = dataclasses.replace(target, opt_state=only_averages(target.opt_state))
    state = restore(open_best(directory, score and full_name(score), mode), wanted, ignore=".*")
    return Variables(eval_params(state), state.model_state)
