"""What one step takes, whatever else a few turns of the loop do."""

import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable

from meshwright.when import Tick

_MOST_TURNS = 10_000


class StepTime:
    """Gives the median time between two turns, so that those which also evaluate or save do not count.

    A `on_step` of the loop: `fit(..., on_step=step_time)`. After whatever waits for the newest step, reports too,
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
