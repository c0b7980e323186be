"""Loss spikes: a rule of robust statistics that sees them, and the decisions that a run makes about them.

`spikes.jsonl` has a line for each decision. It is written before the run goes on, so a run that is killed and
continued leaves out the same batches:

    {"time": …, "step": 107, "metric": "loss", "value": 9.1, "median": 2.3, "deviation": 0.05,
     "continued_after": 100, "batches": [106, 108], "positions": [1680, 1728], "examples": [17, 4, …]}

Batches are counted from the start of the run, from 1, those that were left out included.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from meshwright.base._internal import documented
from meshwright.engine._types import check_types
from meshwright.errors import UsageError

_TO_SIGMA = 1.4826
"""The standard deviation of a normal distribution, in its median absolute deviations."""
_LEAST = 0.01
"""The least deviation that is assumed, as a share of the median."""
_LEAST_LOG = 0.1
"""The same for a gradient norm, in its logarithm."""
_LOGARITHMIC = ("grad_norm",)
"""Metrics that are judged by their logarithm, as they vary by factors."""


@documented
@dataclass(frozen=True)
class Spikes:
    """When a value counts as a loss spike, and how many batches are left out around it.

    A spike is a value that is not finite, or above the median of the last values by more than `deviations`
    robust standard deviations (1.4826 median absolute deviations, and at least 1 % of the median). A gradient
    norm is judged by its logarithm. The run then goes back to its newest checkpoint, leaves out the batches
    around the spike, and goes on.

    Raises:
      UsageError: A value has the wrong type, or is too small.

    Example:
      >>> mw.engine.Spikes(deviations=20, before=2, after=2).max_rollbacks
      5
    """

    is_known_by_place: ClassVar[bool] = True

    deviations: float = 12.0
    """The number of robust standard deviations above the median from which a value is a spike."""
    window: int = 128
    """The number of last steps whose median counts."""
    at_least: int = 32
    """The number of steps before any finite value counts as a spike; at most `window`."""
    metrics: tuple[str, ...] = ("loss", "grad_norm")
    """The metrics of the step that are judged."""
    before: int = 1
    """The number of batches before the one of the spike that are left out with it. A checkpoint that has
    seen one of them is set aside, if there is an earlier one."""
    after: int = 1
    """The number of batches after that of the spike that are left out with it."""
    max_rollbacks: int = 5
    """The number of times that the run goes back, over all its attempts. At the next spike it ends with exit
    code 4."""

    def __post_init__(self) -> None:
        check_types(self)
        least = {"window": 8, "at_least": 8, "before": 0, "after": 0, "max_rollbacks": 1}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise UsageError(f"Spikes.{name} is {getattr(self, name)}; it must be at least {number}.")
        if self.at_least > self.window:
            raise UsageError(
                f"Spikes.at_least is {self.at_least}, and window is {self.window}: only the values of the "
                "window count, so no finite value would ever be a spike.\n  Give a larger window."
            )
        if not self.deviations > 0 or not self.metrics:
            raise UsageError("Spikes: deviations must be above 0, and metrics name at least one metric.")


@dataclass(frozen=True)
class Spike:
    """A value that the rule takes for a spike."""

    step: int
    """The step."""
    metric: str
    """The name of the metric."""
    value: float
    """Its value."""
    median: float
    """The median of the last values."""
    deviation: float
    """Their robust standard deviation."""

    def __str__(self) -> str:
        usual = "" if math.isnan(self.median) else f"; the median before is {self.median:.4g}"
        return f"{self.metric} {self.value:.4g} at step {self.step}{usual}"


class Rule:
    """The rule with the values of the last steps, which are its state."""

    def __init__(self, spikes: Spikes):
        self._spikes = spikes
        self._recent = {name: deque[float](maxlen=spikes.window) for name in spikes.metrics}

    def judge(self, step: int, values: Mapping[str, Any]) -> Spike | None:
        """Return the spike of a step; None if there is none, and its values then count for the next ones."""
        if lacking := [name for name in self._recent if name not in values]:
            raise UsageError(
                f"Spikes.metrics: the step has no metric {lacking[0]!r}. It has {', '.join(values)}."
            )
        if values.get("skipped"):  # by a guard: the update changed nothing
            return None
        for name, recent in self._recent.items():
            if spike := self._of(step, name, float(values[name]), recent):
                return spike
        for name, recent in self._recent.items():
            recent.append(float(values[name]))
        return None

    def _of(self, step: int, name: str, value: float, recent: deque[float]) -> Spike | None:
        if not math.isfinite(value):
            return Spike(step, name, value, math.nan, math.nan)
        if len(recent) < self._spikes.at_least:
            return None
        median, deviation = statistics(recent, is_logarithmic=name in _LOGARITHMIC)
        distance = _log(value) - _log(median) if name in _LOGARITHMIC else value - median
        if distance <= self._spikes.deviations * deviation:
            return None
        return Spike(step, name, value, median, deviation)

    def get_state(self) -> dict[str, list[float]]:
        return {name: list(recent) for name, recent in self._recent.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        for name, recent in self._recent.items():
            recent.clear()
            recent.extend(state.get(name, ()))


def statistics(recent: deque[float], *, is_logarithmic: bool) -> tuple[float, float]:
    """Return the median of values, and their robust standard deviation, which is at least a share of it."""
    values = np.array(recent)
    if is_logarithmic:
        values = np.log(np.maximum(values, np.finfo(np.float32).tiny))
    median = float(np.median(values))
    deviation = _TO_SIGMA * float(np.median(np.abs(values - median)))
    if is_logarithmic:
        return math.exp(median), max(deviation, _LEAST_LOG)
    return median, max(deviation, _LEAST * abs(median))


def _log(x: float) -> float:
    return math.log(max(x, float(np.finfo(np.float32).tiny)))
