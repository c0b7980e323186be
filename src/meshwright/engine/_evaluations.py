"""All evaluations of a run as the loop's one `evaluate`."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from meshwright import process
from meshwright.engine._policies import Policy, as_when, is_informed
from meshwright.evaluation import LeftOff, Look, Scores, Scoring
from meshwright.metrics import numbers
from meshwright.train import nothing
from meshwright.when import Due, Tick


def seconds_of(name: str) -> str:
    """Return what reports call the time that an evaluation took."""
    return f"{name}/seconds"


@dataclass(frozen=True)
class EvaluationPart:
    """An evaluation of a run: its function, its times, and its name in reports."""

    name: str
    """Its name in reports."""
    prefix: str
    """The prefix of its scores' names in reports."""
    field: str
    """The setting that errors name."""
    when: Policy
    """When it is due."""
    scoring: Scoring
    """The function that computes its scores."""
    at_end: Callable[[], bool] = lambda: True
    """Returns whether it is made after the last step, whatever `when` says."""

    def __call__(self, step: int, state: Any, directory: Path | None, look: Look = nothing) -> Scores:
        """Return the scores by the names that reports give them; files go below `directory`.

        Raises:
          LeftOff: `look`, which is called before each batch, raises it.
        """
        outputs = directory and directory / "outputs" / self.name
        return self._named(self.scoring(state, step, outputs, look))

    def first(self, state: Any) -> Scores:
        """Return the scores over the first examples, to show that it works."""
        return self._named(self.scoring.first(state))

    def names(self) -> Sequence[str] | None:
        """Return the names of the scores; None while they are not known."""
        known = self.scoring.names
        return None if known is None else [self.prefix + name for name in known]

    def _named(self, scores: Scores) -> Scores:
        return {self.prefix + name: score for name, score in scores.items()}


class Evaluations:
    """`scores = evaluations(tick, state)`: those that are due, as `held_out/loss` and so on."""

    def __init__(self, each: Sequence[EvaluationPart], directory: Path | None):
        self.each, self._directory = each, directory
        self.newest: Scores = {}
        """The last scores by each name."""
        self.history: dict[int, Scores] = {}
        """The scores by the step at which they were found."""
        self.seconds = 0.0
        """Seconds that all evaluations took, not counting the training steps that they waited for."""
        self._due = [Due(as_when(one.when, lambda step: self._known)) for one in each]
        self.needs_reports = any(is_informed(one.when) for one in each)
        """True if the policy of an evaluation reads what was reported."""
        self._known: Scores = {}
        self._newest: tuple[int, Scores] = (-1, {})

    def __call__(self, tick: Tick, state: Any, must_abort: Callable[[int], bool]) -> Scores | None:
        """Return the scores of the evaluations that are due and how long each took, or None.

        Times are no scores: those are the same in each process and each repetition of a run. What was made
        of this step already, before a restart, is not made again.

        Args:
          tick: the turn of the loop.
          state: is evaluated.
          must_abort: whether to leave off at the next batch, told the step.
        """

        def look() -> None:
            if must_abort(tick.step):
                raise LeftOff

        found: Scores = {}
        took: Scores = {}
        for one, due in zip(self.each, self._due, strict=True):
            if self._is_made(one, tick.step) or (tick.last and not one.at_end()) or not due(tick):
                continue
            jax.block_until_ready(state)
            started = time.perf_counter()
            try:
                found |= one(tick.step, state, self._directory, look)
            except LeftOff:
                break
            finally:
                seconds = time.perf_counter() - started
                self.seconds += seconds
            took[seconds_of(one.name)] = seconds
        self._keep(tick.step, found)
        return took | found or None

    def at(self, step: int) -> Scores:
        """Return the scores found at this step, the newest at which there were any; else none."""
        return self._newest[1] if step == self._newest[0] else {}

    def update_known(self, values: Mapping[str, Any]) -> None:
        """Take what is reported, for policies that go by it. All processes take that of process 0."""
        if self.needs_reports:
            self._known |= process.agree(numbers(values))

    def recall(self, history: Mapping[int, Scores], after: int) -> None:
        """Take what was reported before a restart, by step; scores count from the step `after` on.

        Those of step 0 are of before the first update, and count for a run that begins there.
        """
        for step in sorted(history):
            self._known |= history[step]
            counts = step > after or step == after == 0
            if counts and (found := self._scores_among(history[step])):
                self._keep(step, found)

    def owes(self, step: int) -> bool:
        """Return whether a run that ended at this step was cut off in its last evaluations."""
        return any(one.at_end() and not self._is_made(one, step) for one in self.each)

    def _is_made(self, one: EvaluationPart, step: int) -> bool:
        return any(name.startswith(one.prefix) for name in self.history.get(step, ()))

    def _scores_among(self, reported: Scores) -> Scores:
        """Return what evaluations reported, and not training; how long one took is no score."""
        prefixes = tuple(one.prefix for one in self.each)
        times = {seconds_of(one.name) for one in self.each}
        return {name: x for name, x in reported.items() if name.startswith(prefixes) and name not in times}

    def _keep(self, step: int, found: Scores) -> None:
        if found:
            self.newest |= found
            self.history.setdefault(step, {}).update(found)
            self._newest = step, self.at(step) | found
