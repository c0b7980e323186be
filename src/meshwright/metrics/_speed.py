"""How fast the loop turns: the time of a step, rates, and how much of it waits for input."""

import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping

from meshwright.when import Tick

_MOST_TURNS = 10_000


class StepTime:
    """Gives the median time between two turns, so that those which also evaluate or save do not count.

    For the loop: `fit(..., on_step=step_time)`. After whatever waits for the newest step, reports too,
    the host launches a few steps without waiting for any, in turns that take no time. Where there are so few
    turns that those would decide, the mean is given, which they leave right.

    Args:
      ahead: how many steps the loop runs ahead of the devices, `train.RUN_AHEAD`.
    """

    def __init__(self, ahead: int, clock: Callable[[], float] = time.perf_counter):
        self._ahead, self._clock = ahead, clock
        self._turns: deque[float] = deque(maxlen=_MOST_TURNS)

    def __call__(self, tick: Tick) -> None:
        """A turn of the loop."""
        self._turns.append(self._clock())

    def seconds(self) -> float | None:
        """Return the seconds of a step since this was last asked, or None of fewer than two turns."""
        intervals = [end - begin for begin, end in itertools.pairwise(self._turns)]
        while len(self._turns) > 1:  # the next interval begins where this one ended
            self._turns.popleft()
        if not intervals:
            return None
        few = len(intervals) <= 2 * (self._ahead + 1)
        return statistics.fmean(intervals) if few else statistics.median(intervals)


def never_counted() -> float:
    """A count of seconds that stays at 0."""
    return 0.0


class Pace:
    """Counts steps and seconds between two reports.

    A report waits for its step's numbers, so between the ends of two of them just the steps counted
    were computed. Single turns would tell less: after each report the host first runs ahead.
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
        """One more step was launched. The first starts the clock and is not counted."""
        if self._begun is None:
            self._begun = self._now()
        else:
            self._num_steps += 1

    def report(self) -> dict[str, float]:
        """Return the rates of the steps since the last report, all of which are done, and begin anew."""
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
