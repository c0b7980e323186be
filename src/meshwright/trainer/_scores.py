"""What an evaluation finds: the loss and its metrics, and what the user makes of predictions."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax

from meshwright import process
from meshwright.arguments import by_name
from meshwright.errors import UsageError, nearest
from meshwright.train import TrainState
from meshwright.trainer._examples import head
from meshwright.when import Due, Tick, When

Scores = dict[str, float]


class Measure(Protocol):
    """Scores of a state over all evaluation examples, the same on all processes."""

    def __call__(self, state: TrainState) -> Scores: ...

    def names(self, state: TrainState) -> Sequence[str]:
        """Return the names of the scores, having tried as much as is cheap."""
        ...


class Evaluation:
    """The loop's `evaluate`: when due, all measures' scores, as `eval_loss` and so on."""

    def __init__(self, measures: Sequence[Measure], when: When):
        self._measures, self._due = measures, Due(when)
        self.newest: Scores = {}
        """The scores last found, under their own names."""
        self.seconds = 0.0
        """How long all evaluations took, not counting the training steps that they waited for."""

    def __call__(self, tick: Tick, state: TrainState) -> Scores | None:
        """Return the scores if they are due, else None."""
        if not (self._measures and self._due(tick)):
            return None
        jax.block_until_ready(state)
        started = time.perf_counter()
        self.newest = {name: value for measure in self._measures for name, value in measure(state).items()}
        self.seconds += time.perf_counter() - started
        return {f"eval_{name}": value for name, value in self.newest.items()}


class OfPredictions:
    """What `metric_fn(examples=..., preds=...)` returns, computed by process 0 for all.

    Args:
      predict: `(state, examples, batch_size) -> predictions`, collective.
      batch_size: over all devices; so many examples are tried at first.

    Raises:
      UsageError: `metric_fn` asks for other arguments; or, when called, returns no numbers by name.
    """

    def __init__(
        self,
        predict: Callable[[TrainState, Any, int], Sequence[Any]],
        metric_fn: Callable[..., Any],
        examples: Any,
        batch_size: int,
    ):
        self._metric_fn = by_name(metric_fn, ("examples", "preds"), "metric function", ("preds",))
        self._predict, self._examples, self._batch_size = predict, examples, batch_size

    def __call__(self, state: TrainState) -> Scores:
        return self._of(state, self._examples)

    def names(self, state: TrainState) -> Sequence[str]:
        return list(self._of(state, head(self._examples, self._batch_size)))

    def _of(self, state: TrainState, examples: Any) -> Scores:
        preds = self._predict(state, examples, self._batch_size)
        return process.on_lead(lambda: _numbers(self._metric_fn(examples=examples, preds=preds)))


def check_best(best: Mapping[str, str], names: Sequence[str]) -> None:
    """Raise a `UsageError` if a score to keep the best by is none of `names`, or a mode is none."""
    for name, mode in best.items():
        if name not in names:
            close = nearest(name, names)
            raise UsageError(
                f"best={{{name!r}: …}}: there is no such score."
                f"{f' Did you mean {close!r}?' if close else ''}\n"
                f"  Evaluation gives {', '.join(names) or 'none: give eval_examples'}."
            )
        if mode not in ("min", "max"):
            raise UsageError(f"best={{{name!r}: {mode!r}}}: the mode must be 'min' or 'max'.")


def _numbers(found: Any) -> Scores:
    remedy = "it must return numbers by name, {'accuracy': 0.9}"
    if not isinstance(found, Mapping):
        raise UsageError(f"the metric function returned a {type(found).__name__}; {remedy}.")
    try:
        return {str(name): float(value) for name, value in found.items()}
    except (TypeError, ValueError) as error:
        raise UsageError(f"the metric function returned {found}; {remedy}: {error}.") from None
