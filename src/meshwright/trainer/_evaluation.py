"""The evaluation of a `Trainer`: what is scored, by what, and what the scores are called."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from meshwright.arrays import restore
from meshwright.checkpoint import Mode, open_best
from meshwright.errors import UsageError, nearest
from meshwright.evaluation import Look, Metric, Scoring, check_metric
from meshwright.input import numbered_batches
from meshwright.predictor import Predictor
from meshwright.train import TrainState, Variables, eval_params, only_averages
from meshwright.trainer._recipe import Recipe

PREFIX = "eval/"
"""The names of scores begin so in reports and checkpoints."""
Best = Mapping[str, Mode]
"""By which scores to keep the best checkpoint, and which values of them are best."""


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """The examples to evaluate on, and what scores them.

    Raises:
      UsageError: The parts do not go together. It calls them as the arguments, which begin with `prefix`.
    """

    recipe: Recipe
    examples: Any
    batch_size: int
    loss: bool
    """True if the loss is wanted."""
    predictor: Predictor | None
    metric_fn: Callable[..., Any] | None
    prefix: str = ""

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
                f"nothing evaluates {p}examples: give {p}predictor and {p}metric_fn, or "
                f"{'give Trainer a loss' if self.loss else f'leave out {p}loss=False'}."
            )

    @property
    def has_averages(self) -> bool:
        """True if the loss is averaged over the examples: it is wanted, and there is one."""
        return self.loss and bool(self.recipe.losses)

    def scoring(self, best: Best) -> Scoring:
        """Return what scores a state: the loss and its metrics, and what the metric function returns."""
        recipe, examples, size = self.recipe, self.examples, self.batch_size
        sharding = recipe.layout.batch_sharding
        read = partial(numbered_batches, examples, size, sharding, collate=recipe.collate)
        metric = None
        if self.metric_fn is not None:
            predict = None if self.predictor is None else partial(_predictions, self.predictor, size)
            given = {"has_scores": self.has_averages, "name": "the metric function"}
            metric = Metric(self.metric_fn, examples, size, predict, **given)
        mean = recipe.loss_over if self.has_averages else None
        return Scoring(mean, read, metric, accept=partial(_check_best, best))


def _predictions(
    predictor: Predictor, batch_size: int, state: TrainState, examples: Any, look: Look
) -> Sequence[Any]:
    return predictor.of_state(state, examples, batch_size, look)


def best_of(directory: Path, target: TrainState, score: str | None, mode: Mode | None) -> Variables:
    """Return what was evaluated of the checkpoint with the best score. Collective.

    Raises:
      CheckpointError: no checkpoint has this score.
      UsageError: nothing says which score is meant, or which of its values are better.
    """
    wanted = dataclasses.replace(target, opt_state=only_averages(target.opt_state))
    state = restore(open_best(directory, score and PREFIX + score, mode), wanted, ignore=".*")
    return Variables(eval_params(state), state.model_state)


def _check_best(best: Best, names: Sequence[str]) -> None:
    """Raise a `UsageError` if a score to keep the best by is none of `names`."""
    for name in best:
        if name not in names:
            close = nearest(name, names)
            raise UsageError(
                f"best={{{name!r}: …}}: there is no such score."
                f"{f' Did you mean {close!r}?' if close else ''}\n"
                f"  Evaluation gives {', '.join(names)}."
            )
