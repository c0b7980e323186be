"""The summary of a profile, as values and as text."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.base._internal import milliseconds
from meshwright.observe._profile._scopes import COMMAND_BUFFER, ScopeTimes

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
    """Seconds in which the loop waited for examples; None if the profile does not say."""
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
        found = [device.step_seconds for device in self.devices if device.step_seconds is not None]
        return statistics.median(found) if found else None

    def __str__(self) -> str:
        parts = (_device_rows(self), _collective_rows(self), _scope_rows(self), _op_rows(self))
        return "\n".join([*self._heading(), *(row for rows in parts for row in rows), *_advice_rows(self)])

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
    both = device.collective_seconds - device.exposed_seconds
    shares = (
        (computing - both, 11),
        (both, 9),
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
    shown, others = summary.scopes[:NUM_OPS_SHOWN], summary.scopes[NUM_OPS_SHOWN:]
    rows = [(each, each.scope) for each in shown]
    if others:
        rest = np.sum([_scope_columns(each) for each in others], axis=0)
        rows.append((ScopeTimes("", *rest.tolist()), f"{len(others)} others"))
    told = [
        "".join(
            f"{_share(seconds, summary):>{width}}"
            for seconds, width in zip(_scope_columns(each), WIDTHS, strict=True)
        )
        + f"  {name}"
        for each, name in rows
    ]
    heading = "".join(f"{text:>{width}}" for text, width in zip(COLUMNS, WIDTHS, strict=True))
    return ["", "layers, of the devices' time", f"{heading}  scope", *told] if told else []


def _scope_columns(times: ScopeTimes) -> tuple[float, float, float, float]:
    return times.forward_seconds, times.backward_seconds, times.other_seconds, times.collective_seconds


def _advice_rows(summary: Summary) -> list[str]:
    text = advice(summary)
    return ["", f"first: {text}"] if text else []


def _op_rows(summary: Summary) -> list[str]:
    shown, others = summary.ops[:NUM_OPS_SHOWN], summary.ops[NUM_OPS_SHOWN:]
    rows = [(op.seconds, f"{op.name}, {op.count} × {milliseconds(op.seconds / op.count)}") for op in shown]
    rows += [(sum(op.seconds for op in others), f"{len(others)} others")] if others else []
    told = [f"{_share(seconds, summary):>7}  {text}" for seconds, text in rows]
    return ["", "operations, of the devices' time", *told] if told else []


def _share(seconds: float, summary: Summary) -> str:
    return _percent(seconds, summary.seconds * len(summary.devices))


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def advice(summary: Summary) -> str:
    """Return a sentence on what to do first, from what takes most of the time; "" if nothing ran."""
    whole = summary.seconds * len(summary.devices)
    if not whole or not summary.ops:
        return ""
    hidden = sum(each.seconds for each in summary.scopes if each.scope == COMMAND_BUFFER)
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
    named = [each for each in summary.scopes if not each.scope.startswith("(")]
    if sum(each.seconds for each in named) < sum(each.seconds for each in summary.scopes) / 2:
        return "most operations have no scope: name parts of the model with `jax.named_scope`."
    return f"{named[0].scope} takes longest, {_share(named[0].seconds, summary)} of the time."
