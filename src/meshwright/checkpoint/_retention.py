"""Which checkpoints stay.

A policy is given the evaluation results saved with each complete checkpoint, by step, and returns the steps
to keep. It is asked after each save. Whatever it says, the newest stays, and so do those that are pinned.

Policies are put together from smaller ones. The newest two, the best three, and each 10,000th for ever:

    any_of(last(2), best("test/loss", "min", 3), multiples(10_000))
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from meshwright.errors import UsageError
from meshwright.events import read_scalars
from meshwright.storage import local_path
from meshwright.when import Scores

Keep = Callable[[Mapping[int, Scores]], set[int]]
"""A policy. One that goes by scores may name them in an attribute `metrics`, so that an experiment can check
before it starts that its evaluations give them."""


def metrics_of(policy: Any) -> tuple[str, ...]:
    """Return the names of the scores that a policy says it goes by."""
    return getattr(policy, "metrics", ())


def as_policy(keep: Any) -> Keep:
    """Return a policy as it is; a number keeps the newest so many.

    Raises:
      UsageError: It is neither.
    """
    if callable(keep):
        return keep
    if isinstance(keep, int) and not isinstance(keep, bool) and keep > 0:
        return last(keep)
    raise UsageError(
        f"keep={keep!r}: give how many of the newest checkpoints are kept, 1 or more, or a policy, such as "
        "mw.checkpoint.best. To keep all: mw.checkpoint.everything."
    )


def everything(scores: Mapping[int, Scores]) -> set[int]:
    """Keep all."""
    return set(scores)


def last(num_checkpoints: int) -> Keep:
    """Keep the newest `num_checkpoints`, among which pinned ones count like any other."""
    if num_checkpoints < 1:
        raise UsageError(f"last({num_checkpoints}): at least the newest checkpoint is kept.")
    return Last(num_checkpoints)


@dataclass(frozen=True)
class Last:
    """The policy that `last` makes."""

    num_checkpoints: int

    def __call__(self, scores: Mapping[int, Scores]) -> set[int]:
        return set(sorted(scores)[-self.num_checkpoints :])


def multiples(num_steps: int) -> Keep:
    """Keep those whose step `num_steps` divides."""
    _at_least_1("multiples", num_steps)
    return Multiples(num_steps)


@dataclass(frozen=True)
class Multiples:
    """The policy that `multiples` makes."""

    num_steps: int

    def __call__(self, scores: Mapping[int, Scores]) -> set[int]:
        return {step for step in scores if step % self.num_steps == 0}


def spaced(num_steps: int) -> Keep:
    """Keep the oldest, and from there on each that is `num_steps` or more after the one kept before it.

    Unlike `multiples`, this does not need saves to fall on certain steps.
    """
    _at_least_1("spaced", num_steps)
    return Spaced(num_steps)


@dataclass(frozen=True)
class Spaced:
    """The policy that `spaced` makes."""

    num_steps: int

    def __call__(self, scores: Mapping[int, Scores]) -> set[int]:
        kept: list[int] = []
        for step in sorted(scores):
            if not kept or step >= kept[-1] + self.num_steps:
                kept.append(step)
        return set(kept)


def best(
    metric: str,
    mode: Literal["min", "max"],
    num_checkpoints: int = 1,
    *,
    without_metric: Literal["keep", "drop"] = "keep",
    events: str | Path | None = None,
) -> Keep:
    """Keep the best `num_checkpoints` of all but the newest, and the newest, which is to be resumed from.

    Of equally good ones the newer is kept; one that scored NaN is the worst of all.

    Args:
      metric: the name of a score, such as `test/loss`.
      mode: whether "min" or "max" is best.
      num_checkpoints: how many, besides the newest.
      without_metric: what becomes of checkpoints that have no such score: "keep" keeps all of them, not
        counted, as they may be the best; "drop" drops them before any that has a number, oldest first.
      events: a directory in whose TensorBoard files to look for the scores, instead of in the checkpoints;
        `metric` is then `run/tag`, as `mw.events.read_scalars` takes it.
    """
    if mode not in ("min", "max") or without_metric not in ("keep", "drop"):
        raise UsageError(
            f'best({metric!r}): mode is "min" or "max", not {mode!r}, and without_metric "keep" or "drop", '
            f"not {without_metric!r}."
        )
    _at_least_1("best", num_checkpoints)
    if events is not None:
        local_path(events)  # raises if it is an address
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
            found = {step: saved[self.metric] for step, saved in scores.items() if self.metric in saved}
        else:
            found = read_scalars(self.events, self.metric)
        newest = max(scores, default=None)
        older = scores.keys() - {newest}
        spared = older - found.keys() if self.without_metric == "keep" else set()
        ranked = sorted(older - spared, key=lambda step: _rank(step, found.get(step), self.mode))
        return (scores.keys() - older) | spared | set(ranked[-self.num_checkpoints :])


def any_of(*keeps: int | Keep) -> Keep:
    """Keep what any of `keeps` keeps; a number keeps the newest so many."""
    return AnyOf(tuple(map(as_policy, keeps)))


@dataclass(frozen=True)
class AnyOf:
    """The policy that `any_of` makes."""

    keeps: tuple[Keep, ...]

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(metric for keep in self.keeps for metric in metrics_of(keep))

    def __call__(self, scores: Mapping[int, Scores]) -> set[int]:
        return set().union(*(keep(scores) for keep in self.keeps))


def always(keep: int | Keep, *, then: int | Keep) -> Keep:
    """Keep what `keep` keeps and, of the others and the newest, what `then` keeps.

    `any_of(multiples(1000), last(2))` keeps the multiples of 1000 and the newest two, which may be
    multiples; `always(multiples(1000), then=last(2))` does not count multiples among the two.
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
    """Return a key to sort by, from worst to best: NaN, no score, then numbers; and from old to new."""
    if score is None:
        return 1, 0, step
    if math.isnan(score):
        return 0, 0, step
    return 2, score if mode == "max" else -score, step


def _at_least_1(policy: str, number: int) -> None:
    if number < 1:
        raise UsageError(f"{policy}(… {number}): the number must be at least 1.")
