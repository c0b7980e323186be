"""How fast the loop turns, and how much of its time it waits for input."""

import statistics
from collections.abc import Callable, Mapping


class Pace:
    """Keeps the time of the loop's turns between two reports."""

    def __init__(
        self,
        per_second: Mapping[str, float],
        waited: Callable[[], float] | None,
        clock: Callable[[], float],
    ):
        self._per_second, self._waited, self._clock = per_second, waited, clock
        self._turned_at: float | None = None
        self._intervals: list[float] = []
        self._reported_at = self._waited_before = 0.0

    def turn(self) -> None:
        """One more step was made."""
        now = self._clock()
        if self._turned_at is None:
            self._begin(now)
        else:
            self._intervals.append(now - self._turned_at)
        self._turned_at = now

    def report(self) -> dict[str, float]:
        """Return the rates since the last report (those that are known yet) and begin anew."""
        rates = self._rates() | self._input_wait()
        self._intervals.clear()
        self._begin(self._turned_at or 0.0)
        return rates

    def _begin(self, now: float) -> None:
        self._reported_at = now
        self._waited_before = self._waited() if self._waited else 0.0

    def _rates(self) -> dict[str, float]:
        # The median is deaf to the turns in which there was an evaluation, a save or a compilation.
        interval = statistics.median(self._intervals) if self._intervals else 0.0
        if not interval:
            return {}
        items = {f"{name}_per_second": number / interval for name, number in self._per_second.items()}
        return {"steps_per_second": 1 / interval, **items}

    def _input_wait(self) -> dict[str, float]:
        seconds = (self._turned_at or 0.0) - self._reported_at
        if self._waited is None or seconds <= 0:
            return {}
        return {"input_wait": min(1.0, max(0.0, (self._waited() - self._waited_before) / seconds))}
