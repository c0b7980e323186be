"""When something is due.

A policy is a function of the step, so that all processes answer alike without asking each
other: rule 7 of docs/design.md. `every_minutes`, which reads a clock, asks process 0.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from meshwright import process
from meshwright.docstrings import documented
from meshwright.errors import UsageError


@documented
@dataclass(frozen=True)
class Tick:
    """One turn of the training loop, as the rooms see it."""

    step: int
    """Updates made so far: 0 before the first."""
    last: bool = False
    """True in the one turn that follows the last update."""


Scores = dict[str, float]
"""Results of an evaluation, by name."""

When = Callable[[int], bool]
"""Is it due after this step, or, at 0, before the first? Must give one answer on all processes."""


def every(num_steps: int) -> When:
    """Due after each `num_steps` updates, and so not before the first."""
    if num_steps < 1:
        raise UsageError(
            f"every({num_steps}): the number of steps must be at least 1; use `never` for never."
        )
    return Every(num_steps)


@dataclass(frozen=True)
class Every:
    """The policy that `every` makes."""

    num_steps: int

    def __call__(self, step: int) -> bool:
        return step > 0 and step % self.num_steps == 0


def at(*steps: int) -> When:
    """Due after exactly these steps; 0 is before the first update."""
    return At(frozenset(steps))


@dataclass(frozen=True)
class At:
    """The policy that `at` makes."""

    steps: frozenset[int]

    def __call__(self, step: int) -> bool:
        return step in self.steps


def any_of(*whens: When) -> When:
    """Due when any of `whens` is. All are asked, so that those which keep time go on keeping it."""
    return Either(whens)


@dataclass(frozen=True)
class Either:
    """The policy that `any_of` makes."""

    whens: tuple[When, ...]

    def __call__(self, step: int) -> bool:
        answers = [when(step) for when in self.whens]
        return any(answers)


def asked_once(when: When) -> When:
    """Return `when` for several askers: asked again about the same step, it repeats its answer.

    A policy that reads a clock answers True once; two rooms that share it must both hear that.
    """
    step_answered, answer = -1, False

    def remembered(step: int) -> bool:
        nonlocal step_answered, answer
        if step != step_answered:
            step_answered, answer = step, when(step)
        return answer

    return remembered


def never(step: int) -> bool:
    """Never due (but rooms still act on the last tick)."""
    return False


def every_minutes(
    minutes: float, *, asked_every: int = 10, clock: Callable[[], float] = time.monotonic
) -> When:
    """Due when `minutes` have passed on process 0's clock since it was last due.

    Collective: each `asked_every` steps all processes ask process 0. Call it in the same order
    everywhere, on the main thread.
    """
    return EveryMinutes(minutes, asked_every, clock)


@dataclass(eq=False)
class EveryMinutes:
    """The policy that `every_minutes` makes. It remembers the time, so each run needs its own."""

    minutes: float
    asked_every: int
    clock: Callable[[], float] = field(repr=False)

    def __post_init__(self) -> None:
        self._last = self.clock()

    def __call__(self, step: int) -> bool:
        if step == 0 or step % self.asked_every:
            return False
        due = process.agree(self.clock() - self._last >= 60 * self.minutes)
        if due:
            self._last = self.clock()
        return due


class Due:
    """Remembers the step at which something was last done, so that the last tick does not do it twice."""

    def __init__(self, when: When):
        self._when = when
        self._done_at: int | None = None

    def __call__(self, tick: Tick) -> bool:
        """True when `when` says so, and on the last tick unless this step was done already."""
        due = tick.step != self._done_at if tick.last else self._when(tick.step)
        if due:
            self._done_at = tick.step
        return due
