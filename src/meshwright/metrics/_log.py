"""The loop's `log`: gathers what each step measured and reports it now and then.

Metrics stay on the device until a report is due, and are then fetched all at once: asking for a
number earlier would make the host wait for the step that it has only just launched.
"""

import time
from collections.abc import Callable, Mapping

import jax

from meshwright.metrics._first import FirstStep
from meshwright.metrics._speed import Pace, never_counted
from meshwright.metrics._values import Metrics, merge
from meshwright.metrics._writers import Writer, screens_of
from meshwright.when import Due, Tick, When, every

Log = Callable[[Tick, Metrics, Mapping[str, float] | None], None]
"""Is told of each turn: the step's metrics, still on the device, and evaluation scores if there are any."""

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
    """Return a `log` that reports the means since its last report to `write`.

    A report holds, in this order: the metrics, histograms last; what `also` gives; `steps_per_second`; a rate
    for each of `per_second`; `input_wait`; the scores. Scores that come while no report is due are written
    at once and alone. The last tick reports what is left.

    A `Console` among the writers is also shown the metrics of the first step alone, by the fifth: they are no
    report, and no other writer is given them.

    Until a report is due all metrics since the last one are kept on the device.

    Args:
      write: called on the steps that report, and on no others.
      per_second: how many of a thing one step consumes: `{"examples": 256}` adds
        `examples_per_second`.
      also: gives more numbers by name when a report of metrics is due, such as a `Step`'s `learning_rates`.
        A metric of the same name stands.
      waited: the seconds that the loop has spent waiting for batches so far. `input_wait` is the
        share of the time since the last report by which it grew, 0 to 1.
      paused: the seconds that the loop has spent on other things than training, evaluation above
        all, so far. They do not count in the rates.
      clock: in seconds, from any origin.

    Raises:
      UsageError: when a report is due, if a metric is not a scalar.
    """
    due, pace = Due(when), Pace(per_second, waited, paused, clock)
    gathered: list[Metrics] = []
    screens = screens_of(write)
    first = FirstStep(screens)

    def log(tick: Tick, metrics: Metrics, scores: Mapping[str, float] | None) -> None:
        if not tick.last:  # the last tick repeats a step: it measured nothing
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
