"""Where the time of a profile went, as values and as text."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

NUM_OPS_SHOWN = 12


@dataclass(frozen=True)
class StepTimes:
    """What the host did for one step. It runs ahead of the devices, so this is not how long a step takes."""

    step: int
    launch_seconds: float
    until_next_seconds: float | None
    """From its launch to that of the next; None of the last."""


@dataclass(frozen=True)
class DeviceTimes:
    """What one device did while the profile was taken."""

    name: str
    busy_seconds: float
    """While at least one operation ran."""
    collective_seconds: float
    """While a collective ran. Waiting for the other devices to come to it counts."""
    exposed_seconds: float
    """While collectives ran and nothing else did."""
    step_seconds: float | None
    """The median from one end of the program to the next; None where there was only one."""


@dataclass(frozen=True)
class OpTimes:
    """All runs of one operation of one program, over all devices."""

    name: str
    """As in the program's HLO text."""
    module: str
    collective: str | None
    """Which kind of collective it is, if one."""
    count: int
    seconds: float


@dataclass(frozen=True)
class Summary:
    """Where the time of a profile went."""

    file: str
    seconds: float
    """From the launch of its first step to the end of all that was launched."""
    input_wait_seconds: float | None
    """How long the loop waited for examples in that time; None where the profile does not say."""
    steps: Sequence[StepTimes]
    devices: Sequence[DeviceTimes]
    ops: Sequence[OpTimes]
    """The longest first."""

    @property
    def step_seconds(self) -> float | None:
        """How long a step takes the devices, the median over them; None where a profile is too short."""
        found = [device.step_seconds for device in self.devices if device.step_seconds is not None]
        return statistics.median(found) if found else None

    def __str__(self) -> str:
        return "\n".join([*self._heading(), *_device_rows(self), *_collective_rows(self), *_op_rows(self)])

    def _heading(self) -> list[str]:
        period = "" if self.step_seconds is None else f"; a step takes the devices {_ms(self.step_seconds)}"
        lines = [self.file, f"{self._which_steps()}, {_ms(self.seconds)} in all{period}"]
        if self.steps:
            lines.append(
                f"launched by the host in {', '.join(_ms(step.launch_seconds) for step in self.steps)}"
            )
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


def _op_rows(summary: Summary) -> list[str]:
    shown, others = summary.ops[:NUM_OPS_SHOWN], summary.ops[NUM_OPS_SHOWN:]
    rows = [(op.seconds, f"{op.name}, {op.count} × {_ms(op.seconds / op.count)}") for op in shown]
    rows += [(sum(op.seconds for op in others), f"{len(others)} others")] if others else []
    told = [f"{_share(seconds, summary):>7}  {text}" for seconds, text in rows]
    return ["", "operations, of the devices' time", *told] if told else []


def _share(seconds: float, summary: Summary) -> str:
    return _percent(seconds, summary.seconds * len(summary.devices))


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"
