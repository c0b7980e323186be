"""The summary of a profile, as values and as text: times of steps, devices, layers and operations."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from meshwright.base._internal import local_path, milliseconds
from meshwright.observe._profile._scopes import COMMAND_BUFFER, DEPTH, ScopeTimes, scope_times
from meshwright.observe._profile._xplane import Op, Span, groups_in, read_profile, sources_in
from meshwright.program._internal import axes_written, collective_of

NUM_OPS_SHOWN = 12
COLUMNS = ("forward", "backward", "neither", "collectives in it")
WIDTHS = (8, 10, 9, 19)
MUCH = 0.15
"""Share of the time from which on a cause comes first."""


@dataclass(frozen=True)
class StepTimes:
    """Times of the host for one step.

    The host runs ahead of the devices, so this is not the time of a step.
    """

    step: int
    """Number of the step."""
    launch_seconds: float
    """Seconds that the launch took."""
    until_next_seconds: float | None
    """Seconds from its launch to the next one; None for the last step."""


@dataclass(frozen=True)
class DeviceTimes:
    """Times of one device during the profile."""

    name: str
    """Name of the device."""
    busy_seconds: float
    """Seconds in which at least one operation ran."""
    collective_seconds: float
    """Seconds in which a collective ran, including its wait for other devices."""
    exposed_seconds: float
    """Seconds in which collectives ran and nothing else did."""
    step_seconds: float | None
    """Median seconds from one end of the program to the next; None if there was only one."""


@dataclass(frozen=True)
class OpTimes:
    """All runs of one operation of one program, over all devices."""

    name: str
    """Name as in the program's HLO text."""
    module: str
    """Name of the compiled program."""
    collective: str | None
    """Kind of collective, such as `all-reduce`; None for other operations."""
    count: int
    """Number of runs."""
    seconds: float
    """Seconds of all runs together."""


@dataclass(frozen=True)
class Summary:
    """The times of a profile; as text, a table of them."""

    file: str
    """Path of the profile."""
    seconds: float
    """Seconds from the launch of the first step to the end of all launched work."""
    input_wait_seconds: float | None
    """Seconds in which the loop waited for examples; None if the profile does not record it."""
    steps: Sequence[StepTimes]
    """Times of the host for each step."""
    devices: Sequence[DeviceTimes]
    """Times of each device."""
    ops: Sequence[OpTimes]
    """Times of each operation, the longest first."""
    scopes: Sequence[ScopeTimes] = ()
    """Times of each scope of the model, the longest first."""

    @property
    def step_seconds(self) -> float | None:
        """Seconds that the devices take for a step, the median over devices.

        None if the profile is too short.
        """
        medians = [device.step_seconds for device in self.devices if device.step_seconds is not None]
        return statistics.median(medians) if medians else None

    def __str__(self) -> str:
        parts = (_device_rows(self), _collective_rows(self), _scope_rows(self), _op_rows(self))
        text = advice(self)
        last = ["", f"first: {text}"] if text else []
        return "\n".join([*self._heading(), *(row for rows in parts for row in rows), *last])

    def _heading(self) -> list[str]:
        period = (
            ""
            if self.step_seconds is None
            else f"; a step takes the devices {milliseconds(self.step_seconds)}"
        )
        lines = [self.file, f"{self._which_steps()}, {milliseconds(self.seconds)} in all{period}"]
        if self.steps:
            launching = ", ".join(milliseconds(step.launch_seconds) for step in self.steps)
            lines.append(f"launched by the host in {launching}")
        if self.input_wait_seconds is not None:
            lines.append(f"waiting for input {_percent(self.input_wait_seconds, self.seconds)} of the time")
        return lines

    def _which_steps(self) -> str:
        numbers = [step.step for step in self.steps]
        if len(numbers) > 1:
            return f"{len(numbers)} steps, {numbers[0]} to {numbers[-1]}"
        return f"step {numbers[0]}" if numbers else "no step is marked"


def _device_rows(summary: Summary) -> list[str]:
    if not summary.devices:
        return ["", "no operation of a device is in it"]
    width = max(len(device.name) for device in summary.devices)
    rows = [
        f"{device.name:{width}}{''.join(_shares_of(device, summary.seconds))}" for device in summary.devices
    ]
    return ["", f"{'':{width}}  computing     both  only collectives     idle", *rows]


def _shares_of(device: DeviceTimes, seconds: float) -> list[str]:
    computing = device.busy_seconds - device.exposed_seconds
    hidden = device.collective_seconds - device.exposed_seconds
    shares = (
        (computing - hidden, 11),
        (hidden, 9),
        (device.exposed_seconds, 18),
        (seconds - device.busy_seconds, 9),
    )
    return [f"{_percent(part, seconds):>{width}}" for part, width in shares]


def _collective_rows(summary: Summary) -> list[str]:
    seconds: dict[str, float] = defaultdict(float)
    for op in summary.ops:
        if op.collective:
            seconds[op.collective] += op.seconds
    longest_first = sorted(seconds, key=lambda kind: -seconds[kind])
    rows = [f"{_share(seconds[kind], summary):>7}  {kind}" for kind in longest_first]
    return ["", "collectives, of the devices' time", *rows] if rows else []


def _scope_rows(summary: Summary) -> list[str]:
    longest, others = summary.scopes[:NUM_OPS_SHOWN], summary.scopes[NUM_OPS_SHOWN:]
    rows = [(scope, scope.scope) for scope in longest]
    if others:
        rest = np.sum([_scope_columns(scope) for scope in others], axis=0)
        rows.append((ScopeTimes("", *rest.tolist()), f"{len(others)} others"))
    lines = [
        "".join(
            f"{_share(seconds, summary):>{width}}"
            for seconds, width in zip(_scope_columns(scope), WIDTHS, strict=True)
        )
        + f"  {name}"
        for scope, name in rows
    ]
    heading = "".join(f"{text:>{width}}" for text, width in zip(COLUMNS, WIDTHS, strict=True))
    return ["", "layers, of the devices' time", f"{heading}  scope", *lines] if lines else []


def _scope_columns(times: ScopeTimes) -> tuple[float, float, float, float]:
    return times.forward_seconds, times.backward_seconds, times.other_seconds, times.collective_seconds


def _op_rows(summary: Summary) -> list[str]:
    longest, others = summary.ops[:NUM_OPS_SHOWN], summary.ops[NUM_OPS_SHOWN:]
    rows = [(op.seconds, f"{op.name}, {op.count} × {milliseconds(op.seconds / op.count)}") for op in longest]
    rows += [(sum(op.seconds for op in others), f"{len(others)} others")] if others else []
    lines = [f"{_share(seconds, summary):>7}  {text}" for seconds, text in rows]
    return ["", "operations, of the devices' time", *lines] if lines else []


def _share(seconds: float, summary: Summary) -> str:
    return _percent(seconds, summary.seconds * len(summary.devices))


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def advice(summary: Summary) -> str:
    """Return a sentence on the first thing to do, by the cause that takes most time; "" if nothing ran."""
    whole = summary.seconds * len(summary.devices)
    if not whole or not summary.ops:
        return ""
    hidden = sum(scope.seconds for scope in summary.scopes if scope.scope == COMMAND_BUFFER)
    exposed = sum(device.exposed_seconds for device in summary.devices)
    idle = whole - sum(device.busy_seconds for device in summary.devices)
    waited = (summary.input_wait_seconds or 0.0) * len(summary.devices)
    causes = (
        (waited, "the loop waits for examples: more threads or larger batches in `mw.Input`."),
        (
            hidden,
            "operations are hidden in command buffers (CUDA graphs): take this profile again with "
            "`compile.options={'xla_gpu_enable_command_buffer': ''}`, which shows each by its layer.",
        ),
        (
            exposed,
            "devices wait for communication: plan another mesh (`meshwright plan --search`), or let it "
            "overlap by `compile.options`.",
        ),
        (
            idle,
            "devices are idle: the step is too small for them, or a function of yours waits for its values.",
        ),
    )
    for seconds, text in causes:
        if seconds > MUCH * whole:
            return f"{_percent(seconds, whole)} of the time {text}"
    return _longest(summary)


def _longest(summary: Summary) -> str:
    named = [scope for scope in summary.scopes if not scope.scope.startswith("(")]
    if sum(scope.seconds for scope in named) < sum(scope.seconds for scope in summary.scopes) / 2:
        return "most operations have no scope: name parts of the model with `jax.named_scope`."
    return f"{named[0].scope} takes longest, {_share(named[0].seconds, summary)} of the time."


def summarize(file: str | Path, *, depth: int = DEPTH) -> Summary:
    """Return a summary of a profile: the times of its steps, devices, layers and operations.

    Unproven: never run on a profile of a real GPU or TPU.

    Args:
      file: An `.xplane.pb` file.
      depth: The number of scopes of the model, one inside the other, that are distinguished.

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
    nexts = {step: steps[following].start - steps[step].start for step, following in pairwise(sorted(steps))}
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
    devices do not record the step of an operation.
    """
    module_seconds: dict[str, float] = defaultdict(float)
    for op in ops:
        module_seconds[op.module] += op.seconds
    # The step is the longest program of a run; small ones, such as of reports, run between.
    longest = max(module_seconds, key=lambda module: module_seconds[module], default="")
    program = sorted((op for op in ops if op.module == longest), key=lambda op: op.span.end)
    ends = [op.span.end for op in program if op.name == program[-1].name]
    return statistics.median(b - a for a, b in pairwise(ends)) if len(ends) > 1 else None


def _op_times(ops: Iterable[Op]) -> list[OpTimes]:
    runs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for op in ops:
        runs[op.name, op.module].append(op.seconds)
    times = [
        OpTimes(name, module, collective_of(name), len(seconds), sum(seconds))
        for (name, module), seconds in runs.items()
    ]
    return sorted(times, key=lambda op: -op.seconds)


def _covered(spans: Iterable[Span], window: Span) -> float:
    """Return the length of the union of `spans` inside `window`."""
    total, end = 0.0, window.start
    for span in sorted(spans):
        # Only the part behind the spans so far is new.
        total += max(0.0, min(span.end, window.end) - max(span.start, end))
        end = max(end, span.end)
    return total


def exchange_seconds(summary: Summary, sizes: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    """Return the seconds of all collectives of a profile by mesh axes, over all devices, the longest first.

    Collectives with unknown axes, or of another mesh, are under no axes: ().
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
