"""The `log` of a training loop: collects metrics and measures speed, and reports them from time to time.

Metrics stay on the device until a report is due, and are then fetched all at once. Fetching a number earlier
would make the host wait for the step that it has just launched.
"""

import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from meshwright.observe._values import Metrics, merge
from meshwright.observe._writers import Screen, Writer, screens_of
from meshwright.processes._internal import Due, Tick, When, every

_MOST_TURNS = 10_000


class StepTime:
    """The time of a training step, measured in the loop: `fit(..., on_step=step_time)`.

    It is the median time between two steps, so that steps with an evaluation or a save do not distort it.
    After each wait for the devices, the host launches a few steps in almost no time. If there are so few
    steps that these would distort the median, the mean is used, which they do not distort.

    Example:
      >>> times = iter([0.0, 0.5, 1.0, 1.5])
      >>> step_time = mw.observe._internal.StepTime(ahead=0, clock=lambda: next(times))
      >>> for step in range(4):
      ...     step_time(mw.engine.Tick(step))
      >>> step_time.seconds()
      0.5
    """

    def __init__(self, ahead: int, clock: Callable[[], float] = time.perf_counter):
        self._ahead, self._clock = ahead, clock
        self._turns: deque[float] = deque(maxlen=_MOST_TURNS)

    def __call__(self, tick: Tick) -> None:
        """Record the time of a step."""
        self._turns.append(self._clock())

    def seconds(self) -> float | None:
        """Return the time of a step since the last call, in seconds; None after fewer than two steps."""
        intervals = [end - begin for begin, end in itertools.pairwise(self._turns)]
        # The next interval begins where this one ended.
        while len(self._turns) > 1:
            self._turns.popleft()
        if not intervals:
            return None
        # If this many steps or fewer were timed, those launched without waiting would distort the median.
        few = len(intervals) <= 2 * (self._ahead + 1)
        return statistics.fmean(intervals) if few else statistics.median(intervals)


def never_counted() -> float:
    """Return 0 seconds: the count of a thing that is not measured."""
    return 0.0


class Pace:
    """A count of the steps and seconds between two reports.

    A report waits for the numbers of its step. So between two reports exactly the counted steps were
    computed. Times of single steps would be misleading, as the host runs ahead after each report.
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
        """Count a step that was launched. The first one starts the clock and is not counted."""
        if self._begun is None:
            self._begun = self._counters()
        else:
            self._num_steps += 1

    def report(self) -> dict[str, float]:
        """Return the rates since the last report, all of whose steps are done, and start again."""
        counters = self._counters()
        seconds, waited, paused = (
            new - old for new, old in zip(counters, self._begun or counters, strict=True)
        )
        num_steps, self._num_steps, self._begun = self._num_steps, 0, counters
        # Evaluations and saves are no training, so the rates leave them out.
        seconds -= paused
        if seconds <= 0 or not num_steps:
            return {}
        rate = num_steps / seconds
        items = {f"{name}_per_second": number * rate for name, number in self._per_second.items()}
        waiting = {} if self._waited is never_counted else {"input_wait": min(1.0, waited / seconds)}
        return {"steps_per_second": rate, **items, **waiting}

    def _counters(self) -> tuple[float, float, float]:
        return self._clock(), self._waited(), self._paused()


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
    once and alone if no report is due. The last call reports the remaining metrics. Until a report is due,
    all metrics since the last one are kept on the device.

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
        # The last call repeats a step, whose metrics are here already.
        if not tick.last:
            gathered.append(metrics)
            pace.turn()
        report = {}
        if due(tick):
            # One transfer for all metrics: fetching them step by step would make the host wait at each step.
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
