"""All evaluations of an experiment as the loop's one `evaluate`."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from meshwright import process
from meshwright.experiment._experiment import Experiment
from meshwright.experiment._outputs import OutputFiles
from meshwright.experiment._parts import naming
from meshwright.experiment._policies import Known, as_when, is_informed
from meshwright.input import padded_batches
from meshwright.metrics import Values, numbers
from meshwright.sharding import Layout
from meshwright.train import Evaluator
from meshwright.tree import PyTree
from meshwright.when import Tick

Scores = dict[str, float]


def seconds_of(name: str) -> str:
    """Return what reports call the time that an evaluation took."""
    return f"{name}/seconds"


class Evaluation:
    """One evaluation: when due, its scores; and its outputs, if it has any, as a file."""

    def __init__(
        self,
        experiment: Experiment,
        name: str,
        layout: Layout,
        directory: Path,
        known: Callable[[int], Known],
    ):
        evaler = experiment.evalers[name]
        dtype = experiment.train_dtype if evaler.dtype == "train" else evaler.dtype
        when, self._name, self._is_at_end = as_when(evaler.when, known), name, evaler.at_end

        def data() -> Iterator[Any]:
            return padded_batches(evaler.examples, evaler.batch_size, layout.batch_sharding)

        with naming(f"evalers.{name}.dtype"):
            self._evaluator = Evaluator(
                evaler.measure, data, layout, when, compute_dtype=dtype, params=evaler.params
            )
        files = directory / "outputs" / name
        has_outputs = evaler.outputs is not None
        self._write = OutputFiles(files, evaler, layout, dtype, experiment.seed) if has_outputs else None

    def __call__(self, tick: Tick, state: Any) -> Scores:
        """Return the scores if they are due, else nothing."""
        if tick.last and not self._is_at_end:
            return {}
        scores = self._evaluator(tick, state)
        if scores is None:
            return {}
        if self._write is not None:
            self._write(tick.step, state)
        return {f"{self._name}/{key}": score for key, score in scores.items()}

    @property
    def seconds(self) -> float:
        """How long this has taken in all, not counting the training steps that it waited for."""
        return self._evaluator.seconds + (0.0 if self._write is None else self._write.seconds)

    def check(self, state: Any, batch: PyTree) -> list[str]:
        """Return the names of the scores, having tried the functions on structs of state and batch.

        Raises:
          UsageError: one returns something that has no value for each example.
        """
        with naming(f"evalers.{self._name}.measure"):
            scores = self._evaluator.check(state, batch)
        if self._write is not None:
            with naming(f"evalers.{self._name}.outputs"):
                self._write.check(state, batch)
        return [f"{self._name}/{score}" for score in scores]


class Evaluations:
    """`reported = evaluations(tick, state)`: what is due, as `held_out/loss` and so on."""

    def __init__(self, experiment: Experiment, layout: Layout, directory: Path):
        self.each = {
            name: Evaluation(experiment, name, layout, directory, lambda step: self._known)
            for name in experiment.evalers
        }
        """The evaluations by name."""
        self.newest: Scores = {}
        """The last scores by each name."""
        self.history: dict[int, Scores] = {}
        """The scores by the step at which they were found."""
        self.needs_reports = any(is_informed(evaler.when) for evaler in experiment.evalers.values())
        """Whether a policy goes by what is reported."""
        self._known: Scores = {}
        self._newest: tuple[int, Scores] = (-1, {})

    def __call__(self, tick: Tick, state: Any) -> Scores | None:
        """Return the scores of the evaluations that are due and how long each took, or None.

        Times are no scores: those are the same in each process and each repetition of a run.
        """
        found: Scores = {}
        took: Scores = {}
        for name, one in self.each.items():
            before = one.seconds
            if scores := one(tick, state):
                found |= scores
                took[seconds_of(name)] = one.seconds - before
        self._keep(tick.step, found)
        return took | found or None

    def at(self, step: int) -> Scores:
        """Return the scores found at this step, the newest at which there were any; else none."""
        return self._newest[1] if step == self._newest[0] else {}

    def hear(self, step: int, values: Values, /) -> None:
        """Take a report, as writers do, for policies that go by it. All processes take that of process 0."""
        if self.needs_reports:
            self._known |= process.agree(numbers(values))

    def recall(self, history: Mapping[int, Scores]) -> None:
        """Take what was reported before a restart, by step."""
        self.history |= history
        for step in sorted(history):
            self._known |= history[step]

    def seconds(self) -> float:
        """Return how long all evaluations have taken."""
        return sum(one.seconds for one in self.each.values())

    def _keep(self, step: int, found: Scores) -> None:
        if found:
            self.newest |= found
            self.history.setdefault(step, {}).update(found)
            self._newest = step, self.at(step) | found
