"""All evaluators of an experiment as the loop's one `evaluate`."""

from collections.abc import Iterator
from typing import Any

from meshwright.experiment._experiment import Evaler, Experiment, as_when
from meshwright.experiment._parts import naming
from meshwright.input import padded_batches
from meshwright.sharding import Layout
from meshwright.train import Evaluator
from meshwright.when import Tick

Scores = dict[str, float]


class Evaluations:
    """`scores = evaluations(tick, state)`: what is due, as `held_out/loss` and so on."""

    def __init__(self, experiment: Experiment, layout: Layout):
        self.each = {
            name: _evaluator(experiment, name, evaler, layout) for name, evaler in experiment.evalers.items()
        }
        """The evaluators by name."""
        self.newest: Scores = {}
        """The last scores by each name."""
        self.history: dict[int, Scores] = {}
        """The scores by the step at which they were found."""

    def __call__(self, tick: Tick, state: Any) -> Scores | None:
        """Return the scores of the evaluators that are due, or None."""
        found = {name: scores for name, one in self.each.items() if (scores := one(tick, state))}
        flat = {f"{name}/{key}": value for name, scores in found.items() for key, value in scores.items()}
        self.newest |= flat
        if flat:
            self.history.setdefault(tick.step, {}).update(flat)
        return flat or None

    def seconds(self) -> float:
        """Return how long all evaluations have taken."""
        return sum(one.seconds for one in self.each.values())


def _evaluator(experiment: Experiment, name: str, evaler: Evaler, layout: Layout) -> Evaluator:
    def data() -> Iterator[Any]:
        return padded_batches(evaler.examples, evaler.batch_size, layout.batch_sharding)

    dtype = experiment.train_dtype if evaler.dtype == "train" else evaler.dtype
    with naming(f"evalers.{name}.dtype"):
        return Evaluator(evaler.measure, data, layout, as_when(evaler.when), compute_dtype=dtype)
