"""The progress of a run: the numbers that the console and its panel show."""

from collections import deque
from collections.abc import Mapping
from typing import TypeVar

_SPARKLINE_REPORTS = 24

T = TypeVar("T")


class Progress:
    """The step that a run has reached, and its newest values."""

    def __init__(self, max_steps: int | None):
        self.max_steps = max_steps
        self.step = 0
        self.newest: dict[str, tuple[int, float]] = {}
        """The last value of each name, after the step that reported it."""
        self.losses: deque[float] = deque(maxlen=_SPARKLINE_REPORTS)
        self._first: tuple[int, float] | None = None

    def reach(self, step: int, current_time: float) -> None:
        """Record that the run has reached `step` at the time `current_time`, in seconds."""
        if self._first is None:
            self._first = (step, current_time)
        self.step = max(self.step, step)

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """Record the values of a report."""
        self.newest |= {name: (step, value) for name, value in values.items()}
        if "loss" in values:
            self.losses.append(values["loss"])

    def reached(self, step: int) -> str:
        """Return a step as text, with the number of steps in all if it is known: `50/900`."""
        return f"{step}" if self.max_steps is None else f"{step}/{self.max_steps}"

    def seconds_left(self, current_time: float) -> float | None:
        """Return the seconds left to the last step at the speed so far, all pauses included; or None."""
        if self.max_steps is None or self._first is None or self.step == self._first[0]:
            return None
        step, since = self._first
        return (self.max_steps - self.step) * (current_time - since) / (self.step - step)


def loss_first(values: Mapping[str, T]) -> dict[str, T]:
    """Return `values` with the loss first. JAX sorts the names in dictionaries."""
    return {name: values[name] for name in sorted(values, key=lambda name: name != "loss")}
