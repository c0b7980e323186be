"""What has been heard of a run so far: the facts that the console shows."""

from collections import deque
from collections.abc import Mapping
from typing import TypeVar

_SPARKLINE_REPORTS = 24

T = TypeVar("T")


class Progress:
    """Where a run is, and its newest values."""

    def __init__(self, max_steps: int | None):
        self.max_steps = max_steps
        self.step = 0
        self.newest: dict[str, tuple[int, float]] = {}
        """The last value heard by each name, and the step it was of."""
        self.losses: deque[float] = deque(maxlen=_SPARKLINE_REPORTS)
        self._first: tuple[int, float] | None = None

    def reach(self, step: int, now: float) -> None:
        """The run is known to have reached `step` at the time `now`, in seconds."""
        if self._first is None:
            self._first = (step, now)
        self.step = max(self.step, step)

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """Remember what was reported."""
        self.newest |= {name: (step, value) for name, value in values.items()}
        if "loss" in values:
            self.losses.append(values["loss"])

    def reached(self, step: int) -> str:
        """Return how far `step` is, of how many."""
        return f"{step}" if self.max_steps is None else f"{step}/{self.max_steps}"

    def seconds_left(self, now: float) -> float | None:
        """The time to the last step at the pace so far, evaluations and saves included; None if not known."""
        if self.max_steps is None or self._first is None or self.step == self._first[0]:
            return None
        step, since = self._first
        return (self.max_steps - self.step) * (now - since) / (self.step - step)


def loss_first(values: Mapping[str, T]) -> dict[str, T]:
    """Return `values` with the loss in front of the others, which JAX has sorted by name."""
    return {name: values[name] for name in sorted(values, key=lambda name: name != "loss")}
