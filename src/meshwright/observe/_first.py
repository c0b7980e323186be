"""The first step's metrics, shown while no report is due yet."""

from collections.abc import Sequence
from typing import Any

import jax

from meshwright.observe._values import Metrics, merge
from meshwright.observe._writers import Screen
from meshwright.processes._internal import Tick

_TURNS = 5
"""The step from which on they are shown. By then the loop has waited for the first step anyway."""


class FirstStep:
    """Shows the metrics of the first step as soon as they are known, unless a report comes first.

    So a run whose first report is a thousand steps away shows within seconds whether its loss is sensible.
    The loop never waits here: metrics that are not ready are looked for again after the next step.
    """

    def __init__(self, screens: Sequence[Screen]):
        self._screens = screens
        self._first: tuple[int, Metrics] | None = None
        self._turns = 0

    def turn(self, tick: Tick, metrics: Metrics) -> None:
        """Take the metrics of a step that comes before the first report."""
        if not self._screens:
            return
        self._turns += 1
        if self._first is None:
            self._first = tick.step, metrics
        step, measured = self._first
        if self._turns >= _TURNS and _is_there(measured):
            values = merge([jax.device_get(measured)])
            for screen in self._screens:
                screen.first(step, values)
            self.end()

    def end(self) -> None:
        """Stop showing metrics, as there has been a report."""
        self._screens, self._first = (), None


def _is_there(metrics: Any) -> bool:
    arrays = (x for x in jax.tree.leaves(metrics) if isinstance(x, jax.Array))
    return all(x.is_ready() for x in arrays)  # type: ignore[missing-attribute]  # JAX declares no types for it
