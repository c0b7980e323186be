"""How fast the loop turns, and how much of its time it waits for input."""

from collections.abc import Callable, Mapping


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
