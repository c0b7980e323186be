"""Policies that say at which steps something is due: a report, an evaluation, a checkpoint.

A policy is a function of the step, so that all processes get the same answer without asking each other: rule
7 of docs/design.md. `every_minutes` and `whenever_free` read a clock, and so ask process 0.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from meshwright.base._internal import documented
from meshwright.errors import UsageError
from meshwright.processes._agree import agree


@documented
@dataclass(frozen=True)
class Tick:
    """A moment of the training loop: after an update, before the first one, or at the end.

    Example:
      >>> mw.engine.Tick(100, last=True).step
      100
    """

    step: int
    """Number of updates made so far; 0 before the first."""
    last: bool = False
    """True once, at the end of training, after the last update."""


Scores = dict[str, float]
"""Results of an evaluation, by name."""

When = Callable[[int], bool]
"""A policy: returns whether something is due after this step; 0 is before the first update.

It must give the same answer on all processes.
"""


def every(num_steps: int) -> When:
    """Return a policy that is due after every `num_steps` updates. It is not due before the first.

    Args:
      num_steps: The number of updates from one time to the next.

    Raises:
      UsageError: The number is below 1.

    Example:
      >>> due = mw.engine.every(100)
      >>> [step for step in range(301) if due(step)]
      [100, 200, 300]
    """
    if num_steps < 1:
        raise UsageError(f"every({num_steps}): expected at least 1 step. For never, use mw.engine.never.")
    return Every(num_steps)


@dataclass(frozen=True)
class Every:
    """The policy that `every` makes."""

    num_steps: int

    def __call__(self, step: int) -> bool:
        return step > 0 and step % self.num_steps == 0


def at(*steps: int) -> When:
    """Return a policy that is due after exactly these steps.

    Args:
      steps: The steps; 0 is before the first update.

    Example:
      >>> due = mw.engine.at(0, 10, 100)
      >>> due(10), due(11)
      (True, False)
    """
    return At(frozenset(steps))


@dataclass(frozen=True)
class At:
    """The policy that `at` makes."""

    steps: frozenset[int]

    def __call__(self, step: int) -> bool:
        return step in self.steps


def any_of(*whens: When) -> When:
    """Return a policy that is due when at least one of several policies is.

    Args:
      whens: The policies. All are asked at each step, so that those with a clock keep their time.

    Example:
      >>> due = mw.engine.any_of(mw.engine.at(0), mw.engine.every(100))
      >>> due(0), due(100), due(150)
      (True, True, False)
    """
    return Either(whens)


@dataclass(frozen=True)
class Either:
    """The policy that `any_of` makes."""

    whens: tuple[When, ...]

    def __call__(self, step: int) -> bool:
        answers = [when(step) for when in self.whens]
        return any(answers)


def asked_once(when: When) -> When:
    """Return a policy that repeats its answer when it is asked again about the same step.

    A policy with a clock answers True only once. With this, two parts of a program can share it.
    """
    step_answered, answer = -1, False

    def remembered(step: int) -> bool:
        nonlocal step_answered, answer
        if step != step_answered:
            step_answered, answer = step, when(step)
        return answer

    return remembered


def never(step: int) -> bool:
    """Return False: a policy that is never due. Reports and checkpoints are still made at the end.

    Args:
      step: The step, which does not matter.

    Example:
      >>> mw.engine.never(100)
      False
    """
    return False


def every_minutes(
    minutes: float, *, asked_every: int = 10, clock: Callable[[], float] = time.monotonic
) -> When:
    """Return a policy that is due when some minutes have passed on process 0's clock since it was last due.

    The policy is collective: after every `asked_every` steps, process 0 sends its answer to all processes.
    Call it on the main thread, and at the same points of the program on every process.

    Args:
      minutes: The minutes from one time to the next.
      asked_every: The number of steps between two looks at the clock.
      clock: Returns the time in seconds, from any origin.

    Example:
      >>> seconds = iter([0.0, 30.0, 70.0])
      >>> due = mw.engine.every_minutes(1, asked_every=10, clock=lambda: next(seconds, 70.0))
      >>> [step for step in (10, 15, 20) if due(step)]
      [20]
    """
    return EveryMinutes(minutes, asked_every, clock)


@dataclass(eq=False)
class EveryMinutes:
    """The policy that `every_minutes` makes. It keeps the time, so each run needs its own."""

    minutes: float
    asked_every: int
    clock: Callable[[], float] = field(repr=False)

    def __post_init__(self) -> None:
        self._last = self.clock()

    def __call__(self, step: int) -> bool:
        if step == 0 or step % self.asked_every:
            return False
        due = agree(self.clock() - self._last >= 60 * self.minutes)
        if due:
            self._last = self.clock()
        return due


def whenever_free(
    *, share: float = 0.01, asked_every: int = 10, clock: Callable[[], float] = time.monotonic
) -> When:
    """Return a policy for saves that is due as often as saves cost at most a share of the loop's time.

    The cost is measured, on process 0: the time of the steps just after a save, less the usual time of so
    many steps. After a save that cost c seconds, the next one is due c / share seconds later; if it cost
    nothing that could be measured, after the next `asked_every` steps. The first save is due as soon as the
    usual time is known. A save that is still being written when the next one begins makes that one wait, so
    a slow disk has its saves less often, too.

    The policy is collective, as `every_minutes` is. Each run needs one of its own.

    Args:
      share: The largest share of the loop's time that the saves may cost, above 0 and below 1.
      asked_every: The number of steps between two looks at the clock, over which times are averaged.
      clock: Returns the time in seconds, from any origin.

    Raises:
      UsageError: `share` is not between 0 and 1, or `asked_every` is below 1.

    Example:
      >>> now = 0.0
      >>> due = mw.engine.whenever_free(share=0.1, asked_every=1, clock=lambda: now)
      >>> saved = []
      >>> for step in range(1, 60):
      ...     now += 1.0  # the step
      ...     if due(step):
      ...         now, saved = now + 2.0, [*saved, step]  # a save costs two seconds: due each 20 seconds
      >>> saved
      [5, 23, 41, 59]
    """
    if not 0 < share < 1 or asked_every < 1:
        raise UsageError(
            f"whenever_free(share={share}, asked_every={asked_every}): `share` is a part of the loop's time, "
            "between 0 and 1, such as 0.01, and `asked_every` is at least 1."
        )
    return WheneverFree(share, asked_every, clock)


_FEWEST_TIMES, _MOST_TIMES = 3, 32
# The median of so many costs ignores one that an evaluation made look large.
_MOST_COSTS = 3


@dataclass(eq=False)
class WheneverFree:
    """The policy that `whenever_free` makes. It keeps times, so each run needs its own."""

    share: float
    asked_every: int
    clock: Callable[[], float] = field(repr=False)

    def __post_init__(self) -> None:
        self._looked: float | None = None
        self._saved_at: float | None = None
        # The first steps compile and fill caches, so they count as unusual.
        self._is_after_save = True
        self._usual, self._costs = deque[float](maxlen=_MOST_TIMES), deque[float](maxlen=_MOST_COSTS)

    def __call__(self, step: int) -> bool:
        return step > 0 and step % self.asked_every == 0 and agree(self._look(self.clock()))

    def _look(self, time_now: float) -> bool:
        """Note the time since the last look, and return whether a save is due now."""
        previous, self._looked = self._looked, time_now
        if previous is None:
            return False
        if not self._is_after_save:
            self._usual.append(time_now - previous)
        elif self._saved_at is not None:
            self._costs.append(max(0.0, time_now - previous - statistics.median(self._usual)))
        self._is_after_save = len(self._usual) >= _FEWEST_TIMES and self._is_free(time_now)
        if self._is_after_save:
            self._saved_at = time_now
        return self._is_after_save

    def _is_free(self, time_now: float) -> bool:
        if self._saved_at is None:
            return True
        return time_now - self._saved_at >= statistics.median(self._costs) / self.share


class Due:
    """A policy that is also due at the end, unless it was already due after the last update."""

    def __init__(self, when: When):
        self._when = when
        self._done_at: int | None = None

    def __call__(self, tick: Tick) -> bool:
        """Return whether the policy is due; at the end of training, unless this step was due already."""
        due = tick.step != self._done_at if tick.last else self._when(tick.step)
        if due:
            self._done_at = tick.step
        return due
