"""The first step's metrics, shown while no report is due yet."""

from collections.abc import Sequence
from typing import Any

import jax

from meshwright.metrics._values import Metrics, merge
from meshwright.metrics._writers import Screen
from meshwright.when import Tick

_TURNS = 5
"""The turn from which on they are shown. By then the loop has waited for the first step anyway."""


class FirstStep:
    """Shows people what the first step measured as soon as that is known, if no report comes before it.

    So a run whose first report is a thousand steps away shows within seconds whether its loss is sensible.
    The loop waits for nothing here: what is not there yet is looked for again in the next turn.
    """

    def __init__(self, screens: Sequence[Screen]):
        self._screens = screens
        self._first: tuple[int, Metrics] | None = None
        self._turns = 0

    def turn(self, tick: Tick, metrics: Metrics) -> None:
        """Take the metrics of a step of which nothing was reported yet."""
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
        """Show nothing any more: there has been a report."""
        self._screens, self._first = (), None


def _is_there(metrics: Any) -> bool:
    arrays = (x for x in jax.tree.leaves(metrics) if isinstance(x, jax.Array))
    return all(x.is_ready() for x in arrays)  # type: ignore[missing-attribute]  # JAX declares no types for it
