"""All evaluations of a run as the loop's one `evaluate`."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax

from meshwright import process
from meshwright.engine._policies import Policy, as_when, is_informed
from meshwright.metrics import Values, numbers
from meshwright.when import Due, Tick

Scores = dict[str, float]


def seconds_of(name: str) -> str:
    """Return what reports call the time that an evaluation took."""
    return f"{name}/seconds"


class Evaluation(Protocol):
    """One evaluation: scores of a state, the same on all processes."""

    @property
    def name(self) -> str:
        """Return what reports call it."""
        ...

    @property
    def field(self) -> str:
        """Return the setting that errors name."""
        ...

    @property
    def prefix(self) -> str:
        """Return how the names of its scores begin in reports."""
        ...

    @property
    def when(self) -> Policy:
        """Return when it is due."""
        ...

    @property
    def at_end(self) -> bool:
        """Return whether it is made after the last step, whatever `when` says."""
        ...

    def __call__(self, step: int, state: Any, directory: Path | None) -> Scores:
        """Return the scores by the names that reports give them; files go below `directory`."""
        ...

    def check(self, target: Any) -> str:
        """Try what can be tried on structs of the state, and return what was found, for people.

        Raises:
          UsageError: something does not fit.
        """
        ...

    def names(self) -> Sequence[str]:
        """Return the names of the scores, as far as they are known by now."""
        ...

    def first(self, state: Any) -> Scores:
        """Return scores over a few examples, to show that it works; nothing, if `check` showed it."""
        ...


class Evaluations:
    """`scores = evaluations(tick, state)`: those that are due, as `held_out/loss` and so on."""

    def __init__(self, each: Sequence[Evaluation], directory: Path | None):
        self.each, self._directory = each, directory
        self.newest: Scores = {}
        """The last scores by each name."""
        self.history: dict[int, Scores] = {}
        """The scores by the step at which they were found."""
        self.seconds = 0.0
        """How long all evaluations took, not counting the training steps that they waited for."""
        self._due = [Due(as_when(one.when, lambda step: self._known)) for one in each]
        self.needs_reports = any(is_informed(one.when) for one in each)
        """Whether one of them goes by what was reported."""
        self._known: Scores = {}
        self._newest: tuple[int, Scores] = (-1, {})

    def __call__(self, tick: Tick, state: Any) -> Scores | None:
        """Return the scores of the evaluations that are due and how long each took, or None.

        Times are no scores: those are the same in each process and each repetition of a run.
        """
        found: Scores = {}
        took: Scores = {}
        for one, due in zip(self.each, self._due, strict=True):
            if (tick.last and not one.at_end) or not due(tick):
                continue
            jax.block_until_ready(state)
            started = time.perf_counter()
            found |= one(tick.step, state, self._directory)
            took[seconds_of(one.name)] = time.perf_counter() - started
        self.seconds += sum(took.values())
        self._keep(tick.step, found)
        return took | found or None

    def at(self, step: int) -> Scores:
        """Return the scores found at this step, the newest at which there were any; else none."""
        return self._newest[1] if step == self._newest[0] else {}

    def hear(self, step: int, values: Values, /) -> None:
        """Take a report, as writers do, for policies that go by it. All processes take that of process 0."""
        if self.needs_reports:
            self._known |= process.agree(numbers(values))

    def recall(self, history: Mapping[int, Scores], after: int) -> None:
        """Take what was reported before a restart, by step; scores count from the step `after` on."""
        for step in sorted(history):
            self._known |= history[step]
            if step > after and (found := self._scores_among(history[step])):
                self.history[step] = found

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
