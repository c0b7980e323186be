"""The reasons to end a run before its last step: a signal, a time limit, or scores that do not improve."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import jax

from meshwright.base._internal import documented, duration, explained
from meshwright.engine._types import check_types
from meshwright.errors import Interrupted, UsageError
from meshwright.processes import _internal as processes
from meshwright.processes._internal import Tick


@dataclass(frozen=True)
class Limit:
    """A time limit and the reason for it."""

    until: float
    """The time on the clock `time.monotonic`."""
    reason: str
    """A message for when the time has passed."""


@dataclass(frozen=True)
class Deadline:
    """The time limits of a run. The clock of process 0 decides for all processes."""

    limits: Sequence[Limit]
    is_set: bool
    """True if process 0 has any limit."""

    def passed(self) -> str | None:
        """Return why the run is out of time, or None if it is not. Collective if a limit is set."""
        if not self.is_set:
            return None
        seconds = time.monotonic()
        return processes.agree(next((limit.reason for limit in self.limits if seconds >= limit.until), None))


def deadline(
    max_seconds: float | None, started: float, job_margin_seconds: float | None, say: Callable[[str], None]
) -> Deadline:
    """Return the time limits of a run, and show the user those of the scheduler. Collective."""
    limits = [] if max_seconds is None else [Limit(started + max_seconds, "max_seconds is over")]
    job = None if job_margin_seconds is None else processes.on_lead(processes.job_end)
    if job is not None and job_margin_seconds is not None:
        scheduler, variable, end = job
        remaining_seconds = end - time.time()
        if remaining_seconds <= 0:
            say(f"  ! {variable} is in the past, so the run ignores it and does not end before the job does")
        else:
            margin, remaining = f"{job_margin_seconds:g} s", duration(remaining_seconds)
            say(
                f"  {scheduler} ends this job in {remaining}: the run saves and ends {margin} before that "
                "(job_margin_seconds)"
            )
            reason = f"{scheduler} ends the job in {margin}"
            limits.append(Limit(time.monotonic() + remaining_seconds - job_margin_seconds, reason))
    return Deadline(limits, processes.agree(bool(limits)))


History = Mapping[int, Mapping[str, float]]
"""The scores of a run by step, including those before a restart."""

StopEarly = Callable[[History], bool]
"""A pure function of a run's scores that returns True to end the run. It is called after each evaluation. It
may have an attribute `metrics`, the names of the scores that it reads; a run without these is refused."""


def early_stopping(metric: str, mode: Literal["min", "max"], patience: int, *, by: float = 0.0) -> StopEarly:
    """Return a policy for `Stop.early` that ends a run when its score stops improving.

    The run ends when none of the last `patience` scores is better than all scores before them. NaN is worse
    than any number.

    Args:
      metric: The name of the score in reports, such as "test/loss".
      mode: "min" if a lower score is better, "max" if a higher score is better.
      patience: The number of evaluations in a row without a better score.
      by: The smallest difference that counts as better.

    Raises:
      UsageError: `mode` is neither "min" nor "max", or `patience` is below 1.

    Example:
      >>> policy = mw.engine.early_stopping("test/loss", "min", patience=2)
      >>> policy({10: {"test/loss": 1.0}, 20: {"test/loss": 1.2}, 30: {"test/loss": 1.1}})
      True
    """
    if mode not in ("min", "max") or patience < 1:
        raise UsageError(
            f"early_stopping({metric!r}, {mode!r}, {patience}): `mode` must be 'min' or 'max', and "
            "`patience` at least 1."
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
        """The scores that the policy reads."""
        return (self.metric,)

    def __call__(self, history: History) -> bool:
        sign = 1 if self.mode == "max" else -1
        evaluated = (history[step] for step in sorted(history) if self.metric in history[step])
        values = [_comparable(sign * scores[self.metric]) for scores in evaluated]
        earlier, newest = values[: -self.patience], values[-self.patience :]
        return bool(earlier) and not any(score > max(earlier) + self.by for score in newest)


def _comparable(score: float) -> float:
    """Return the score, or minus infinity for NaN, which is neither smaller nor larger than any number."""
    return -math.inf if math.isnan(score) else score


@explained
@documented
@dataclass(frozen=True)
class Stop:
    """The reasons to end a run before its last step: a time limit, or scores that do not improve.

    Raises:
      UsageError: A value has the wrong type, or `job_margin_seconds` is negative.

    Example:
      >>> early = mw.engine.early_stopping("test/loss", "min", patience=5)
      >>> mw.Stop(max_seconds=3600, early=early).max_seconds
      3600
    """

    is_known_by_place: ClassVar[bool] = True

    max_seconds: float | None = None
    """The most seconds that the process may take, from the start of the command, or in Python from the call.
    When they are over, the run finishes its step, saves, and ends with exit code 75. The same command
    continues it."""
    early: StopEarly | None = None
    """A function of the scores that returns True to end the run, such as `mw.engine.early_stopping(...)`."""
    job_margin_seconds: float | None = 120.0
    """The seconds before the end of the job at which the run saves and ends, if the scheduler (SLURM) tells
    when the job ends. None ignores the end of the job."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.job_margin_seconds is not None and self.job_margin_seconds < 0:
            raise UsageError(
                f"Stop.job_margin_seconds is {self.job_margin_seconds}; it must be at least 0, or None to "
                "ignore the end of the job."
            )


class Stopping:
    """The loop's `stop`: returns whether to end the run after a step. All processes get the same answer."""

    def __init__(
        self,
        signals: processes.Signals,
        early: StopEarly | None,
        deadline: Deadline,
        every: int,
        history: History,
    ):
        self._signals, self._early, self._deadline = signals, early, deadline
        self._every, self._history = every, history
        self._num_checked, self._num_batches = len(history), 0
        self.interruption: Interrupted | None = None
        """The error to raise at the end of a run that is not complete. The same command continues it."""
        self.is_early = False
        """True if the scores ended the run. Such a run is complete."""

    def ended_early(self) -> bool:
        """Return whether the scores ended this run in an earlier attempt."""
        self.is_early = bool(self._history) and self._early is not None and self._early(self._history)
        return self.is_early

    def ends_early(self) -> bool:
        """Return whether the scores end the run.

        The policy is called once for each evaluation. The scores are the same on all processes, and so is the
        answer.
        """
        if self._early is not None and len(self._history) != self._num_checked:
            self._num_checked = len(self._history)
            self.is_early = self._early(self._history)
        return self.is_early

    def is_interrupted(self, step: int) -> bool:
        """Return whether to stop because of a signal. Collective.

        The time limit is not checked here, so that each attempt makes some progress.
        """
        if self._signals.stop(step):
            self.interruption = self._signals.interruption
        return self.interruption is not None

    def must_abort(self, step: int) -> bool:
        """Return whether to abort an evaluation, so that the run can save in time. Collective.

        An evaluation calls this before each batch. The next attempt makes an aborted evaluation again, so
        that the interruption does not change any scores.
        """
        self._num_batches += 1
        return self.is_interrupted(step) or self._is_out_of_time(step, self._num_batches)

    def __call__(self, tick: Tick) -> bool:
        over = self.is_interrupted(tick.step) or self._is_out_of_time(tick.step, tick.step)
        return over or self.ends_early()

    def _is_out_of_time(self, step: int, count: int) -> bool:
        if self.interruption is None and (jax.process_count() == 1 or count % self._every == 0):
            reason = self._deadline.passed()
            if reason is not None:
                self.interruption = Interrupted(
                    f"stopped after step {step}: {reason}. Run the same command again to continue."
                )
        return self.interruption is not None
