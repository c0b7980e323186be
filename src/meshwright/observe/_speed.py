"""The speed of a training loop: the time of a step, rates per second, and the share of waiting for input."""

import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping

from meshwright.processes._internal import Tick

_MOST_TURNS = 10_000


class StepTime:
    """The time of a training step, measured in the loop: `fit(..., on_step=step_time)`.

    It is the median time between two steps, so that steps with an evaluation or a save do not distort it.
    After each wait for the devices, the host launches a few steps in almost no time. If there are so few
    steps that these would distort the median, the mean is used, which they do not distort.

    Example:
      >>> times = iter([0.0, 0.5, 1.0, 1.5])
      >>> step_time = mw.observe._internal.StepTime(ahead=0, clock=lambda: next(times))
      >>> for step in range(4):
      ...     step_time(mw.engine.Tick(step))
      >>> step_time.seconds()
      0.5
    """

    def __init__(self, ahead: int, clock: Callable[[], float] = time.perf_counter):
        self._ahead, self._clock = ahead, clock
        self._turns: deque[float] = deque(maxlen=_MOST_TURNS)

    def __call__(self, tick: Tick) -> None:
        """Record the time of a step."""
        self._turns.append(self._clock())

    def seconds(self) -> float | None:
        """Return the time of a step since the last call, in seconds; None after fewer than two steps."""
        intervals = [end - begin for begin, end in itertools.pairwise(self._turns)]
        while len(self._turns) > 1:  # the next interval begins where this one ended
            self._turns.popleft()
        if not intervals:
            return None
        few = len(intervals) <= 2 * (self._ahead + 1)
        return statistics.fmean(intervals) if few else statistics.median(intervals)


def never_counted() -> float:
    """Return 0 seconds: the count of a thing that is not measured."""
    return 0.0


class Pace:
    """A count of the steps and seconds between two reports.

    A report waits for the numbers of its step. So between two reports exactly the counted steps were
    computed. Times of single steps would say less, as the host runs ahead after each report.
    """

    def __init__(
        self,
        per_second: Mapping[str, float],
        waited: Callable[[], float],
        paused: Callable[[], float],
        clock: Callable[[], float],
    ):
        self._per_second, self._waited, self._paused, self._clock = per_second, waited, paused, clock
        self._begun: tuple[float, float, float] | None = None
        self._num_steps = 0

    def turn(self) -> None:
        """Count a step that was launched. The first one starts the clock and is not counted."""
        if self._begun is None:
            self._begun = self._now()
        else:
            self._num_steps += 1

    def report(self) -> dict[str, float]:
        """Return the rates since the last report, all of whose steps are done, and start again."""
        now = self._now()
        seconds, waited, paused = (new - old for new, old in zip(now, self._begun or now, strict=True))
        num_steps, self._num_steps, self._begun = self._num_steps, 0, now
        seconds -= paused
        if seconds <= 0 or not num_steps:
            return {}
        rate = num_steps / seconds
        items = {f"{name}_per_second": number * rate for name, number in self._per_second.items()}
        waiting = {} if self._waited is never_counted else {"input_wait": min(1.0, waited / seconds)}
        return {"steps_per_second": rate, **items, **waiting}

    def _now(self) -> tuple[float, float, float]:
        return self._clock(), self._waited(), self._paused()
