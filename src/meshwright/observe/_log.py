"""The `log` of a training loop: collects the metrics of each step and reports them from time to time.

Metrics stay on the device until a report is due, and are then fetched all at once. Fetching a number earlier
would make the host wait for the step that it has just launched.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from meshwright.observe._speed import Pace, never_counted
from meshwright.observe._values import Metrics, merge
from meshwright.observe._writers import Screen, Writer, screens_of
from meshwright.processes._internal import Due, Tick, When, every

Log = Callable[[Tick, Metrics, Mapping[str, float] | None], None]
"""Called after each step with the step's metrics, still on the device, and the scores of an evaluation."""

_EVERY_50_STEPS = every(50)


def logger(
    write: Writer,
    when: When = _EVERY_50_STEPS,
    *,
    per_second: Mapping[str, float] = {},
    also: Callable[[], Mapping[str, float]] = dict,
    waited: Callable[[], float] = never_counted,
    paused: Callable[[], float] = never_counted,
    clock: Callable[[], float] = time.perf_counter,
) -> Log:
    """Return a `log` for `fit` that reports the means of the metrics since the last report.

    A report contains, in this order: the metrics, histograms last; the numbers of `also`; `steps_per_second`;
    a rate for each entry of `per_second`; `input_wait`; the scores. Scores of an evaluation are written at
    once and alone if no report is due. The last call reports what is left. Until a report is due, all metrics
    since the last one are kept on the device.

    A `Console` among the writers also shows the metrics of the first step alone, by the fifth step. They are
    not a report, and no other writer gets them.

    Args:
      write: The writer, called only for the steps that report.
      when: The policy that chooses the steps that report, such as `mw.engine.every(50)`.
      per_second: The number of things that one step consumes, by name: `{"examples": 256}` adds
        `examples_per_second` to the report.
      also: Returns more numbers by name when a report is due, such as a `Step`'s `learning_rates`. A metric
        of the same name takes precedence.
      waited: Returns the seconds that the loop has spent waiting for batches so far. `input_wait` is the
        share of this waiting in the time since the last report, from 0 to 1.
      paused: Returns the seconds that the loop has spent on other things than training so far, such as
        evaluations. The rates leave them out.
      clock: Returns the time in seconds, from any origin.

    Raises:
      UsageError: A metric is not a scalar. The `log` raises it when a report is due.

    Example:
      >>> log = mw.observe.logger(lambda step, values: print(step, values["loss"]), mw.engine.every(2))
      >>> for step in (1, 2):
      ...     log(mw.engine.Tick(step), {"loss": jnp.float32(step)}, None)
      2 1.5
    """
    due, pace = Due(when), Pace(per_second, waited, paused, clock)
    gathered: list[Metrics] = []
    screens = screens_of(write)
    first = FirstStep(screens)

    def log(tick: Tick, metrics: Metrics, scores: Mapping[str, float] | None) -> None:
        if not tick.last:  # the last call repeats a step, whose metrics are here already
            gathered.append(metrics)
            pace.turn()
        report = {}
        if due(tick):
            measured = merge(jax.device_get(gathered))
            report = {**measured, **also(), **measured, **pace.report()}
            gathered.clear()
            first.end()
        elif not tick.last:
            first.turn(tick, metrics)
        if report or scores:
            write(tick.step, {**report, **(scores or {})})
        if scores:
            for screen in screens:
                screen.evaluated(tick.step, scores)

    return log


_TURNS = 5
"""The step from which on those of the first one are shown. By then the loop has waited for it anyway."""


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
