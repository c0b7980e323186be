"""The evaluations of an experiment: scores of each example, and what the model made of it as a file."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from meshwright.engine import Evaluation, Look, Policy, Scores, global_batch, looking, naming
from meshwright.errors import UsageError
from meshwright.experiment._experiment import Evaler, Experiment
from meshwright.experiment._outputs import OutputFiles
from meshwright.input import local_rows, num_examples, padded_batches, some_rows
from meshwright.sharding import Layout
from meshwright.train import Evaluator, nothing
from meshwright.tree import PyTree
from meshwright.when import Tick


def evaluations_of(experiment: Experiment, layout: Layout) -> list[Evaluation]:
    """Return the evaluations of an experiment.

    Raises:
      UsageError: a dtype is none.
    """
    return [MeasuredExamples(experiment, name, layout) for name in experiment.evaluations]


class MeasuredExamples:
    """An `Evaler` as the engine wants it."""

    def __init__(self, experiment: Experiment, name: str, layout: Layout):
        evaler = experiment.evaluations[name]
        dtype = experiment.compute_dtype if evaler.dtype == "train" else evaler.dtype
        self.name, self.prefix, self.field = name, f"{name}/", f"evaluations.{name}.measure"
        self.when: Policy = evaler.when
        self.at_end = evaler.at_end
        self._evaler, self._layout = evaler, layout
        self._names: tuple[str, ...] = ()
        self._look: Look = nothing

        def data() -> Iterator[Any]:
            batches = padded_batches(evaler.examples, evaler.batch_size, layout.batch_sharding)
            return looking(batches, self._look)

        with naming(f"evaluations.{name}.dtype"):
            self._evaluator = Evaluator(
                evaler.measure, data, layout, lambda step: True, compute_dtype=dtype, params=evaler.params
            )
        has_outputs = evaler.outputs is not None
        self._outputs = OutputFiles(evaler, layout, dtype, experiment.seed) if has_outputs else None

    def __call__(self, step: int, state: Any, directory: Path | None, look: Look) -> Scores:
        """Return the scores by the names that reports give them."""
        self._look = look
        scores = self._derived(self._evaluator(Tick(step), state) or {})
        if self._outputs is not None and directory is not None:
            self._outputs(directory / "outputs" / self.name, step, state, look)
        return {f"{self.name}/{key}": score for key, score in scores.items()}

    def check(self, target: Any) -> str:
        """Try the functions on structs of state and batch.

        Raises:
          UsageError: one returns something that has no value for each example.
        """
        with naming(f"evaluations.{self.name}"):
            batch = _first_batch(self._evaler, self._layout)
        with naming(f"evaluations.{self.name}.measure"):
            found = self._evaluator.check(target, batch)
        self._names = tuple(f"{self.name}/{score}" for score in self._derived(dict.fromkeys(found, 1.0)))
        if self._outputs is not None:
            with naming(f"evaluations.{self.name}.outputs"):
                self._outputs.check(target, batch)
        number = num_examples(self._evaler.examples)
        return f"evaluation {self.name!r} fits: {'any number of' if number is None else number} examples"

    def _derived(self, scores: Scores) -> Scores:
        """Return scores and those that are computed from them.

        Raises:
          UsageError: the function fails, or returns no numbers by names of their own.
        """
        if self._evaler.derive is None:
            return scores
        field = f"evaluations.{self.name}.derive"
        try:
            more = {str(key): float(value) for key, value in self._evaler.derive(dict(scores)).items()}
        except (KeyError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
            raise UsageError(
                f"{field}: it takes scores by name, {', '.join(scores)}, and returns numbers by name; it "
                f"ended with {type(error).__name__}: {error}."
            ) from None
        if taken := more.keys() & scores.keys():
            raise UsageError(f"{field} returns {min(taken)!r}, which the measure gives already.")
        return scores | more

    def names(self) -> Sequence[str]:
        """Return the names of the scores, which `check` found."""
        return self._names

    def first(self, state: Any) -> Scores:
        """Return nothing: `check` has shown that it works."""
        return {}


def _first_batch(evaler: Evaler, layout: Layout) -> PyTree:
    local_rows(evaler.batch_size, layout.batch_sharding)  # raises if it does not divide
    return global_batch(some_rows(evaler.examples, evaler.batch_size), evaler.batch_size)
