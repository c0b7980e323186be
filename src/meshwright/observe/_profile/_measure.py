"""Summaries of profiles: the times of steps, devices and operations, and of exchanges by mesh axes."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from meshwright.base._internal import local_path
from meshwright.observe._profile._programs import groups_in, sources_in
from meshwright.observe._profile._scopes import DEPTH, scope_times
from meshwright.observe._profile._summary import DeviceTimes, OpTimes, StepTimes, Summary
from meshwright.observe._profile._xplane import Op, Span, read_profile
from meshwright.program._internal import axes_written, collective_of


def summarize(file: str | Path, *, depth: int = DEPTH) -> Summary:
    """Return a summary of a profile: the times of its steps, devices, layers and operations.

    Unproven: never run on a profile of a real GPU or TPU.

    Args:
      file: An `.xplane.pb` file.
      depth: The number of scopes of the model, one inside the other, that are told apart.

    Raises:
      InputError: The file cannot be read, is damaged, or is empty.

    Example:
      >>> import pathlib
      >>> with jax.profiler.trace("profile"):
      ...     _ = jax.block_until_ready(jnp.ones(8) + 1)
      >>> [file] = pathlib.Path("profile").rglob("*.xplane.pb")
      >>> len(mw.observe.summarize(file).devices)
      1
    """
    recorded = read_profile(local_path(file))
    all_ops = [op for ops in recorded.devices.values() for op in ops]
    steps, ops = recorded.steps.values(), [op.span for op in all_ops]
    window = Span(min(span.start for span in steps or ops), max(span.end for span in [*steps, *ops]))
    waits = recorded.input_waits
    within = [op for op in all_ops if op.span.end > window.start and not op.is_outer]
    return Summary(
        file=str(file),
        seconds=window.end - window.start,
        input_wait_seconds=None if waits is None else _covered(waits, window),
        steps=_step_times(recorded.steps),
        devices=[_device_times(name, ops, window) for name, ops in recorded.devices.items()],
        ops=_op_times(within),
        scopes=scope_times(within, sources_in(local_path(file)), depth),
    )


def _step_times(steps: Mapping[int, Span]) -> list[StepTimes]:
    nexts = {step: steps[after].start - steps[step].start for step, after in pairwise(sorted(steps))}
    return [StepTimes(step, span.end - span.start, nexts.get(step)) for step, span in sorted(steps.items())]


def _device_times(name: str, ops: Sequence[Op], window: Span) -> DeviceTimes:
    running = [op for op in ops if not op.is_outer]
    busy = _covered([op.span for op in running], window)
    computing = _covered([op.span for op in running if not collective_of(op.name)], window)
    return DeviceTimes(
        name=name,
        busy_seconds=busy,
        collective_seconds=_covered([op.span for op in running if collective_of(op.name)], window),
        exposed_seconds=busy - computing,
        step_seconds=_step_seconds(ops),
    )


def _step_seconds(ops: Sequence[Op]) -> float | None:
    """Return the median time between the ends of the longest program.

    The operation that ends last in it is in no loop, and so it ends once per step. The profiles of some
    devices do not say which step an operation belongs to.
    """
    module_seconds: dict[str, float] = defaultdict(float)
    for op in ops:
        module_seconds[op.module] += op.seconds
    longest = max(module_seconds, key=lambda module: module_seconds[module], default="")
    program = sorted((op for op in ops if op.module == longest), key=lambda op: op.span.end)
    ends = [op.span.end for op in program if op.name == program[-1].name]
    return statistics.median(b - a for a, b in pairwise(ends)) if len(ends) > 1 else None


def _op_times(ops: Iterable[Op]) -> list[OpTimes]:
    runs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for op in ops:
        runs[op.name, op.module].append(op.seconds)
    found = [
        OpTimes(name, module, collective_of(name), len(seconds), sum(seconds))
        for (name, module), seconds in runs.items()
    ]
    return sorted(found, key=lambda op: -op.seconds)


def _covered(spans: Iterable[Span], window: Span) -> float:
    """Return the length of the union of `spans` inside `window`."""
    total, end = 0.0, window.start
    for span in sorted(spans):
        total += max(0.0, min(span.end, window.end) - max(span.start, end))
        end = max(end, span.end)
    return total


def exchange_seconds(summary: Summary, sizes: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    """Return the seconds of all collectives of a profile by mesh axes, over all devices, the longest first.

    Collectives whose axes the profile does not tell, or that are not of this mesh, are under no axes: ().
    """
    groups = groups_in(Path(summary.file))
    seconds: dict[tuple[str, ...], float] = defaultdict(float)
    for op in summary.ops:
        if op.collective is None:
            continue
        axes: tuple[str, ...] = ()
        with suppress(ValueError, KeyError):
            axes = axes_written(groups[op.module][op.name], sizes)
        seconds[axes] += op.seconds
    return dict(sorted(seconds.items(), key=lambda pair: -pair[1]))
