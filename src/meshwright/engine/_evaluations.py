"""The evaluations of a run: when they are due, what they find, and the history of their scores."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from meshwright.engine._errors import errors_naming
from meshwright.engine._evaluation._batches import BeforeBatch, EvaluationInterrupted, Scores
from meshwright.engine._evaluation._scoring import Scoring
from meshwright.engine._policies import Policy, as_when, is_informed
from meshwright.errors import InputError
from meshwright.observe._internal import numbers
from meshwright.processes import _internal as processes
from meshwright.processes._internal import Due, Tick
from meshwright.training._internal import nothing


def seconds_of(name: str) -> str:
    """Return the name under which reports give the time that an evaluation took."""
    return f"{name}/seconds"


@dataclass(frozen=True)
class EvaluationPart:
    """An evaluation of a run: its function, when it is due, and its name in reports."""

    name: str
    """Its name in reports."""
    prefix: str
    """The prefix of its scores' names in reports."""
    field: str
    """The setting that errors name."""
    when: Policy
    """The policy that says after which steps it is due."""
    scoring: Scoring
    """The function that computes its scores."""
    at_end: Callable[[], bool] = lambda: True
    """Returns whether the evaluation is always made after the last step."""

    def __call__(
        self, step: int, state: Any, directory: Path | None, before_batch: BeforeBatch = nothing
    ) -> Scores:
        """Return the scores by their names in reports. Collective."""
        outputs = directory and directory / "outputs" / self.name
        with errors_naming(f"evaluation {self.name!r}", InputError):
            return self._named(self.scoring(state, step, outputs, before_batch))

    def first(self, state: Any) -> Scores:
        """Return the scores of the first examples, to show that the evaluation works."""
        with errors_naming(f"evaluation {self.name!r}", InputError):
            return self._named(self.scoring.first(state))

    def names(self) -> Sequence[str] | None:
        """Return the names of the scores, or None if they are not known yet."""
        names = self.scoring.names
        return None if names is None else [self.prefix + name for name in names]

    def _named(self, scores: Scores) -> Scores:
        return {self.prefix + name: score for name, score in scores.items()}


class Evaluations:
    """All evaluations of a run. A call returns the scores of those that are due, such as `held_out/loss`."""

    def __init__(self, evaluations: Sequence[EvaluationPart], directory: Path | None):
        self.parts, self._directory = evaluations, directory
        self.newest: Scores = {}
        """The newest score of each name."""
        self.history: dict[int, Scores] = {}
        """The scores by step."""
        self.seconds = 0.0
        """The seconds that all evaluations took, without the training steps that they waited for."""
        self._due = [Due(as_when(evaluation.when, lambda step: self._known)) for evaluation in evaluations]
        self.needs_reports = any(is_informed(evaluation.when) for evaluation in evaluations)
        """True if the policy of an evaluation reads reported numbers."""
        self._known: Scores = {}
        self._newest: tuple[int, Scores] = (-1, {})

    def __call__(self, tick: Tick, state: Any, must_abort: Callable[[int], bool]) -> Scores | None:
        """Return the scores of the evaluations that are due and the time of each, or None. Collective.

        Times are not scores: scores are the same in every process and every repetition of a run. Evaluations
        of this step that were made before a restart are not made again.
        """

        def before_batch() -> None:
            if must_abort(tick.step):
                raise EvaluationInterrupted

        scores: Scores = {}
        took: Scores = {}
        for evaluation, due in zip(self.parts, self._due, strict=True):
            is_owed = not self._is_done(evaluation, tick.step) and (not tick.last or evaluation.at_end())
            if not is_owed or not due(tick):
                continue
            jax.block_until_ready(state)
            started = time.perf_counter()
            try:
                scores |= evaluation(tick.step, state, self._directory, before_batch)
            except EvaluationInterrupted:
                break
            finally:
                seconds = time.perf_counter() - started
                self.seconds += seconds
            took[seconds_of(evaluation.name)] = seconds
        self._keep(tick.step, scores)
        return took | scores or None

    def scores_at(self, step: int) -> Scores:
        """Return the scores of this step if it is the newest step with scores, else an empty dictionary."""
        return self._newest[1] if step == self._newest[0] else {}

    def update_known(self, values: Mapping[str, Any]) -> None:
        """Give a report of process 0 to the policies that read reports. Collective if there are any."""
        if self.needs_reports:
            self._known |= processes.agree(numbers(values))

    def restore(self, history: Mapping[int, Scores], first_step: int) -> None:
        """Restore the scores and known numbers from the reports of earlier attempts."""
        for step in sorted(history):
            self._known |= history[step]
            is_ours = step > first_step or step == first_step == 0
            if is_ours and (scores := self._scores_in(history[step])):
                self._keep(step, scores)

    def has_missing(self, step: int) -> bool:
        """Return whether an evaluation after the last step, `step`, is missing because it was aborted."""
        return any(evaluation.at_end() and not self._is_done(evaluation, step) for evaluation in self.parts)

    def _is_done(self, evaluation: EvaluationPart, step: int) -> bool:
        return any(name.startswith(evaluation.prefix) for name in self.history.get(step, ()))

    def _scores_in(self, reported: Scores) -> Scores:
        """Return the scores in a report, without the metrics of training and the times of evaluations."""
        prefixes = tuple(evaluation.prefix for evaluation in self.parts)
        times = {seconds_of(evaluation.name) for evaluation in self.parts}
        return {name: x for name, x in reported.items() if name.startswith(prefixes) and name not in times}

    def _keep(self, step: int, scores: Scores) -> None:
        if scores:
            self.newest |= scores
            self.history.setdefault(step, {}).update(scores)
            self._newest = step, self.scores_at(step) | scores
