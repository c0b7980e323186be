"""Retention policies: functions that choose the checkpoints to keep.

A policy gets the evaluation scores saved with each complete checkpoint, by step, and returns the steps to
keep. It is called after each save. The newest checkpoint and pinned ones are always kept.

Policies can be combined. This keeps the newest two, the best three, and every 10,000th:

    keep_any(last(2), best("test/loss", "min", 3), multiples(10_000))
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from meshwright.base._internal import local_path
from meshwright.errors import UsageError
from meshwright.observe._internal import read_scalars
from meshwright.processes._internal import Scores

Keep = Callable[[Mapping[int, Scores]], set[int]]
"""A policy: takes the scores of each checkpoint, by step, and returns the steps to keep.

One that uses scores should have an attribute `metrics` with their names, so that an experiment can check
before it starts that its evaluations report them."""


def metrics_of(policy: Any) -> tuple[str, ...]:
    """Return the names of the scores that a policy uses."""
    return getattr(policy, "metrics", ())


def as_policy(keep: Any) -> Keep:
    """Return a policy as it is, and for a number the policy `last`."""
    if callable(keep):
        return keep
    if isinstance(keep, int) and not isinstance(keep, bool) and keep > 0:
        return last(keep)
    raise UsageError(
        f"keep={keep!r}: give the number of newest checkpoints to keep, 1 or more, or a policy such as "
        "mw.checkpoints.best(…). To keep all: mw.checkpoints.everything."
    )


def everything(scores: Mapping[int, Scores]) -> set[int]:
    """Keep all checkpoints. This is a policy itself: `keep=mw.checkpoints.everything`.

    Args:
      scores: The scores of each checkpoint, by step.

    Example:
      >>> sorted(mw.checkpoints.everything({100: {}, 200: {}}))
      [100, 200]
    """
    return set(scores)


def last(num_checkpoints: int) -> Keep:
    """Return a policy that keeps the newest checkpoints.

    Args:
      num_checkpoints: The number to keep, 1 or more. Pinned ones count, too.

    Raises:
      UsageError: `num_checkpoints` is less than 1.

    Example:
      >>> sorted(mw.checkpoints.last(2)({100: {}, 200: {}, 300: {}}))
      [200, 300]
    """
    if num_checkpoints < 1:
        raise UsageError(f"last({num_checkpoints}): the number must be at least 1.")
    return Last(num_checkpoints)


@dataclass(frozen=True)
class Last:
    """The policy that `last` makes."""

    num_checkpoints: int

    def __call__(self, scores: Mapping[int, Scores]) -> set[int]:
        return set(sorted(scores)[-self.num_checkpoints :])


def multiples(number: int, of: str = "step") -> Keep:
    """Return a policy that keeps the checkpoints whose step is a multiple of a number.

    Args:
      number: The number, 1 or more.
      of: "step", or the name of a score, such as "epoch", the number of the epoch that ends with a checkpoint
        of `Trainer.fit`. Checkpoints without this score are not kept.

    Raises:
      UsageError: `number` is less than 1.

    Example:
      >>> sorted(mw.checkpoints.multiples(200)({100: {}, 200: {}, 300: {}, 400: {}}))
      [200, 400]
    """
    _at_least_1("multiples", number)
    return Multiples(number, of)


@dataclass(frozen=True)
class Multiples:
    """The policy that `multiples` makes."""

    number: int
    of: str

    def __call__(self, scores: Mapping[int, Scores]) -> set[int]:
        of_step = self.of == "step"
        values = {step: step if of_step else saved.get(self.of) for step, saved in scores.items()}
        return {step for step, value in values.items() if value is not None and value % self.number == 0}


def spaced(num_steps: int) -> Keep:
    """Return a policy that keeps the oldest checkpoint, and each one a distance or more after the last kept.

    Unlike `multiples`, it does not need saves at certain steps.

    Args:
      num_steps: The least distance in steps, 1 or more.

    Raises:
      UsageError: `num_steps` is less than 1.

    Example:
      >>> sorted(mw.checkpoints.spaced(200)({130: {}, 210: {}, 350: {}, 500: {}}))
      [130, 350]
    """
    _at_least_1("spaced", num_steps)
    return Spaced(num_steps)


@dataclass(frozen=True)
class Spaced:
    """The policy that `spaced` makes."""

    num_steps: int

    def __call__(self, scores: Mapping[int, Scores]) -> set[int]:
        steps: list[int] = []
        for step in sorted(scores):
            if not steps or step >= steps[-1] + self.num_steps:
                steps.append(step)
        return set(steps)


def best(
    metric: str,
    mode: Literal["min", "max"],
    num_checkpoints: int = 1,
    *,
    without_metric: Literal["keep", "drop"] = "keep",
    events: str | Path | None = None,
) -> Keep:
    """Return a policy that keeps the newest checkpoint, from which a run resumes, and the best older ones.

    If scores are equal, the newer checkpoint is kept. NaN is the worst score.

    Args:
      metric: The name of the score, such as `test/loss`.
      mode: "min" if lower scores are better, "max" if higher ones are.
      num_checkpoints: The number of best checkpoints to keep besides the newest.
      without_metric: "keep" keeps all checkpoints that lack the score, in addition, as they may be the best;
        "drop" drops them before any that has a score, the oldest first.
      events: A directory with TensorBoard files to read the scores from, instead of the checkpoints. `metric`
        is then `run/tag`, as in `mw.observe.read_scalars`.

    Raises:
      UsageError: `mode` or `without_metric` has another value, or `num_checkpoints` is less than 1.

    Example:
      >>> scores = {100: {"test/loss": 0.3}, 200: {"test/loss": 0.1}, 300: {"test/loss": 0.2}}
      >>> sorted(mw.checkpoints.best("test/loss", "min")(scores))
      [200, 300]
    """
    if mode not in ("min", "max") or without_metric not in ("keep", "drop"):
        raise UsageError(
            f'best({metric!r}): expected mode "min" or "max" and without_metric "keep" or "drop", got '
            f"mode={mode!r} and without_metric={without_metric!r}."
        )
    _at_least_1("best", num_checkpoints)
    if events is not None:
        # The event files cannot be in a store: this raises an error for a URL.
        local_path(events)
    return Best(metric, mode, num_checkpoints, without_metric, events)


@dataclass(frozen=True)
class Best:
    """The policy that `best` makes."""

    metric: str
    mode: Literal["min", "max"]
    num_checkpoints: int
    without_metric: Literal["keep", "drop"]
    events: str | Path | None

    @property
    def metrics(self) -> tuple[str, ...]:
        return (self.metric,) if self.events is None else ()

    def __call__(self, scores: Mapping[int, Scores]) -> set[int]:
        if self.events is None:
            values = {step: saved[self.metric] for step, saved in scores.items() if self.metric in saved}
        else:
            values = read_scalars(self.events, self.metric)
        newest = max(scores, default=None)
        # The newest checkpoint stays in any case, as the run resumes from it.
        older = scores.keys() - {newest}
        spared = older - values.keys() if self.without_metric == "keep" else set()
        ranked = sorted(older - spared, key=lambda step: _rank(step, values.get(step), self.mode))
        # The last of the ranking are the best.
        return (scores.keys() - older) | spared | set(ranked[-self.num_checkpoints :])


def keep_any(*keeps: int | Keep) -> Keep:
    """Return a policy that keeps each checkpoint that at least one of the given policies keeps.

    Args:
      keeps: Policies, or numbers of newest checkpoints.

    Raises:
      UsageError: One of them is neither.

    Example:
      >>> policy = mw.checkpoints.keep_any(1, mw.checkpoints.multiples(200))
      >>> sorted(policy({100: {}, 200: {}, 300: {}}))
      [200, 300]
    """
    return AnyOf(tuple(map(as_policy, keeps)))


@dataclass(frozen=True)
class AnyOf:
    """The policy that `keep_any` makes."""

    keeps: tuple[Keep, ...]

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(metric for keep in self.keeps for metric in metrics_of(keep))

    def __call__(self, scores: Mapping[int, Scores]) -> set[int]:
        return set().union(*(keep(scores) for keep in self.keeps))


def always(keep: int | Keep, *, then: int | Keep) -> Keep:
    """Return a policy that applies `then` only to checkpoints that `keep` does not keep, and to the newest.

    `keep_any(multiples(1000), last(2))` keeps the multiples of 1000 and the newest two, which may be
    multiples; `always(multiples(1000), then=last(2))` does not count multiples among the two.

    Args:
      keep: A policy, or a number of newest checkpoints, which are all kept.
      then: A policy, or a number of newest checkpoints, for the others.

    Raises:
      UsageError: One of them is neither.

    Example:
      >>> policy = mw.checkpoints.always(mw.checkpoints.multiples(200), then=2)
      >>> sorted(policy({100: {}, 150: {}, 200: {}, 250: {}}))
      [150, 200, 250]
    """
    return Always(as_policy(keep), as_policy(then))


@dataclass(frozen=True)
class Always:
    """The policy that `always` makes."""

    keep: Keep
    then: Keep

    @property
    def metrics(self) -> tuple[str, ...]:
        return metrics_of(self.keep) + metrics_of(self.then)

    def __call__(self, scores: Mapping[int, Scores]) -> set[int]:
        forced = self.keep(scores)
        newest = max(scores, default=None)
        rest = {step: saved for step, saved in scores.items() if step == newest or step not in forced}
        return forced | self.then(rest)


def _rank(step: int, score: float | None, mode: Literal["min", "max"]) -> tuple[int, float, int]:
    """Return a sort key from worst to best: NaN, no score, then numbers; equal ones from old to new."""
    if score is None:
        return 1, 0, step
    if math.isnan(score):
        return 0, 0, step
    return 2, score if mode == "max" else -score, step


def _at_least_1(policy: str, number: int) -> None:
    if number < 1:
        raise UsageError(f"{policy}(… {number}): the number must be at least 1.")
