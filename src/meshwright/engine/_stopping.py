"""Why a run ends before its last step, if not by an error: told to, out of time, or no better for long."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import jax

from meshwright import process
from meshwright.docstrings import documented
from meshwright.engine._deadline import Deadline
from meshwright.engine._types import check_types
from meshwright.errors import Interrupted, UsageError
from meshwright.when import Tick

History = Mapping[int, Mapping[str, float]]
"""The scores of a run by step, those before a restart included."""

StopEarly = Callable[[History], bool]
"""A pure function of a run's scores, True to end it; called after each evaluation. A policy that says in an
attribute `metrics` by which scores it goes is refused where no evaluation gives them."""


def early_stopping(metric: str, mode: Literal["min", "max"], patience: int, *, by: float = 0.0) -> StopEarly:
    """Return a policy for `Stop.early`: it ends a run whose score gets no better.

    The run ends when none of the last `patience` scores beats all scores before them. NaN is worse than any
    number.

    Args:
      metric: the name of the score in reports, such as "test/loss".
      mode: "min" if less is better, "max" if more is better.
      patience: the number of evaluations in a row without a better score.
      by: the least difference that counts as better.

    Raises:
      UsageError: `mode` is neither, or `patience` is below 1.

    Example:
      >>> policy = mw.early_stopping("test/loss", "min", patience=2)
      >>> policy({10: {"test/loss": 1.0}, 20: {"test/loss": 1.2}, 30: {"test/loss": 1.1}})
      True
    """
    if mode not in ("min", "max") or patience < 1:
        raise UsageError(
            f"early_stopping({metric!r}, {mode!r}, {patience}): give 'min' or 'max', and at least 1."
        )
    return EarlyStopping(metric, mode, patience, by)


@dataclass(frozen=True)
class EarlyStopping:
    """The policy that `early_stopping` returns."""

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
    """The reasons to end a run before its last step: a time limit, or scores that get no better.

    Raises:
      UsageError: a value is of another type.

    Example:
      >>> mw.Stop(max_seconds=3600, early=mw.early_stopping("test/loss", "min", patience=5)).max_seconds
      3600
    """

    is_known_by_place: ClassVar[bool] = True

    max_seconds: float | None = None
    """Seconds that one process may take, from the launch of the command, or in Python from the call.
    After the step during which the time is over it saves, and ends with exit code 75, to be run again."""
    early: StopEarly | None = None
    """When the scores say that more training does not help."""
    job_margin_seconds: float | None = 120.0
    """Seconds before the end of its job, if the scheduler tells it (SLURM), at which a run saves and ends.
    None ignores the job's end."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.job_margin_seconds is not None and self.job_margin_seconds < 0:
            raise UsageError(
                f"job_margin_seconds is {self.job_margin_seconds}; it must be at least 0, or None, which "
                "does not look when the job ends."
            )


class Stopping:
    """The loop's `stop`. All processes get one answer.

    Args:
      signals: SIGTERM, Ctrl-C, and a platform that takes its machine back.
      early: whether the scores end the run.
      deadline: until when it may go on.
      every: steps, or batches of an evaluation, between looks at the clock where there are several processes.
      history: the scores so far; it grows as the run evaluates.
    """

    def __init__(
        self,
        signals: process.Signals,
        early: StopEarly | None,
        deadline: Deadline,
        every: int,
        history: History,
    ):
        self._signals, self._early, self._deadline = signals, early, deadline
        self._every, self._history = every, history
        self._num_judged, self._num_looks = len(history), 0
        self.interruption: Interrupted | None = None
        """The error to raise after the run, which is not complete and can be continued."""
        self.is_early = False
        """True if the scores ended the run, which is complete then."""

    def ended_early(self) -> bool:
        """Return whether the scores had ended the run before it was called again."""
        self.is_early = bool(self._history) and self._early is not None and self._early(self._history)
        return self.is_early

    def ends_early(self) -> bool:
        """Judge each evaluation once: the scores are the same on all processes, and so is the answer."""
        if self._early is not None and len(self._history) != self._num_judged:
            self._num_judged = len(self._history)
            self.is_early = self._early(self._history)
        return self.is_early

    def is_interrupted(self, step: int) -> bool:
        """Return whether to stop because of a signal. Each attempt does something: time has no say here."""
        if self._signals.stop(step):
            self.interruption = self._signals.interruption
        return self.interruption is not None

    def must_abort(self, step: int) -> bool:
        """Return whether an evaluation is to be left off, to save in time; each of its batches asks.

        It is made when the run goes on, so that an attempt that is cut off changes no scores.
        """
        self._num_looks += 1
        return self.is_interrupted(step) or self._is_out_of_time(step, self._num_looks)

    def __call__(self, tick: Tick) -> bool:
        over = self.is_interrupted(tick.step) or self._is_out_of_time(tick.step, tick.step)
        return over or self.ends_early()

    def _is_out_of_time(self, step: int, number: int) -> bool:
        if self.interruption is None and (jax.process_count() == 1 or number % self._every == 0):
            why = self._deadline.passed()
            if why is not None:
                said = f"stopped after step {step}: {why}. Run the same command again to continue."
                self.interruption = Interrupted(said)
        return self.interruption is not None
