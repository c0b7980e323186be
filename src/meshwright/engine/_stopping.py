"""Why a run ends before its last step, if not by an error: told to, out of time, or no better for long."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import jax

from meshwright import process
from meshwright.docstrings import documented
from meshwright.engine._types import check_types
from meshwright.errors import Interrupted, UsageError
from meshwright.when import Tick

History = Mapping[int, Mapping[str, float]]
"""The scores of a run by step, those before a restart included."""

StopEarly = Callable[[History], bool]
"""Whether to end the run, a pure function of its scores; asked after each evaluation. One that says in an
attribute `metrics` by which scores it goes is refused where no evaluation gives them."""


def early_stopping(metric: str, mode: Literal["min", "max"], patience: int, *, by: float = 0.0) -> StopEarly:
    """Return a policy: end when none of the last `patience` scores beats all before them by more than `by`.

    NaN is worse than any number.

    Raises:
      UsageError: `mode` is another, or `patience` is below 1.
    """
    if mode not in ("min", "max") or patience < 1:
        raise UsageError(
            f"early_stopping({metric!r}, {mode!r}, {patience}): give 'min' or 'max', and at least 1."
        )
    return EarlyStopping(metric, mode, patience, by)


@dataclass(frozen=True)
class EarlyStopping:
    """What `early_stopping` returns."""

    metric: str
    mode: Literal["min", "max"]
    patience: int
    by: float

    @property
    def metrics(self) -> tuple[str, ...]:
        return (self.metric,)

    def __call__(self, history: History) -> bool:
        sign = 1 if self.mode == "max" else -1
        judged = (history[step] for step in sorted(history) if self.metric in history[step])
        found = [_or_worst(sign * scores[self.metric]) for scores in judged]
        before, newest = found[: -self.patience], found[-self.patience :]
        return bool(before) and not any(score > max(before) + self.by for score in newest)


def _or_worst(score: float) -> float:
    """Return a score of which more is better; NaN, which compares with nothing, is the worst."""
    return -math.inf if math.isnan(score) else score


@documented
@dataclass(frozen=True)
class Stop:
    """What ends a run before its last step.

        mw.Stop(max_seconds=3600, early=mw.early_stopping("test/loss", "min", patience=5))

    Raises:
      UsageError: a value is of another type.
    """

    max_seconds: float | None = None
    """How long one process may take, in seconds from the call on. After the step during which the time is
    over, it saves and ends with exit code 75, to be run again."""
    early: StopEarly | None = None
    """When the scores say that more training does not help."""

    def __post_init__(self) -> None:
        check_types(self)


class Stopping:
    """The loop's `stop`. All processes get one answer.

    Args:
      signals: SIGTERM, Ctrl-C, and a platform that takes its machine back.
      when: what else ends the run.
      every: steps between looks at the clock.
      history: the scores so far; it grows as the run evaluates.
      started: when the run was called for, on the clock `time.monotonic`.
    """

    def __init__(self, signals: process.Signals, when: Stop, every: int, history: History, started: float):
        self._signals, self._every, self._early, self._history = signals, every, when.early, history
        self._until = None if when.max_seconds is None else started + when.max_seconds
        self._num_judged = len(history)
        self.interruption: Interrupted | None = None
        """What to raise after the run: it is not complete, and can be continued."""
        self.is_early = False
        """Whether the scores ended the run, which is complete then."""

    def is_ending(self, tick: Tick) -> bool:
        """Return whether there is time to save, and for no more: told so, or at the end of the time.

        So an attempt that is cut off adds no evaluation that an undisturbed run does not make.
        """
        return self._signals.ending or (tick.last and self.interruption is not None)

    def was_early(self) -> bool:
        """Return whether the scores had ended the run before it was called again."""
        return bool(self._history) and self._early is not None and self._early(self._history)

    def __call__(self, tick: Tick) -> bool:
        if self._signals.stop(tick.step):
            self.interruption = self._signals.interruption
        elif self._is_out_of_time(tick.step):
            self.interruption = Interrupted(
                f"stopped after step {tick.step}: max_seconds is over. "
                "Run the same command again to continue."
            )
        elif self._is_no_better():
            self.is_early = True
        return self.is_early or self.interruption is not None

    def _is_out_of_time(self, step: int) -> bool:
        if self._until is None or (jax.process_count() > 1 and step % self._every):
            return False
        return process.agree(time.monotonic() >= self._until)

    def _is_no_better(self) -> bool:
        """Judge each evaluation once: the scores are the same on all processes, and so is the answer."""
        if self._early is None or len(self._history) == self._num_judged:
            return False
        self._num_judged = len(self._history)
        return self._early(self._history)
