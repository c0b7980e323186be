"""Profiles on a disk: a list of them, and the contents of one as plain numbers.

    <run>/plugins/profile/step_100/<host>.xplane.pb               one process
    <run>/plugins/profile/step_100_process_0/<host>.xplane.pb     several processes

A profile consists of planes, lines and events (XSpace, xplane.proto of XLA). Operations of a TPU are on the
line "XLA Ops" of its plane, those of a GPU on its streams, and those of CPU devices on the threads of the
host's plane.
"""

import glob
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from jax.profiler import ProfileData

from meshwright.base._internal import local_path
from meshwright.errors import InputError

INPUT_WAIT = "input wait"
"""Name that `input.Batches` gives to the time in which it waits for examples."""


class Span(NamedTuple):
    """An interval of time, in seconds since the profile began."""

    start: float
    end: float


class Op(NamedTuple):
    """An execution of an operation on a device."""

    name: str
    """Name in the compiled program: `all-reduce.12`."""
    module: str
    """Name of the compiled program; "" if the profile does not say."""
    span: Span
    source: str = ""
    """Operation of the traced function that it comes from, as far as the event itself says."""
    is_outer: bool = False
    """True if it only contains other operations, such as a loop or a call."""

    @property
    def seconds(self) -> float:
        """Return the seconds that it ran."""
        return self.span.end - self.span.start


@dataclass(frozen=True)
class Recorded:
    """The contents of a profile."""

    steps: Mapping[int, Span]
    """Launch of each step on the host."""
    input_waits: Sequence[Span] | None
    """Waits for examples; None if the profile does not record them."""
    devices: Mapping[str, Sequence[Op]]
    """Operations of each device."""


def find_profiles(path: str | Path, step: int | None = None) -> list[Path]:
    """Return the files of one profile, those of all its processes."""
    path = local_path(path)
    if path.is_file():
        return [path]
    places = ("plugins/profile/*/", "*/", "")
    # `glob.glob` leaves out what is removed meanwhile, as a run that ends does with its board.
    names = (name for place in places for name in glob.glob(f"{place}*.xplane.pb", root_dir=path))  # noqa: PTH207
    found = sorted(path / name for name in names)
    if not found:
        raise InputError(
            f"{path} has no profile: there is no *.xplane.pb in it, nor in its plugins/profile/*.\n"
            "  With profile.steps=100, a run takes a profile that begins at step 100."
        )
    windows = defaultdict(list)
    for file in found:
        windows[re.sub(r"_process_\d+$", "", file.parent.name)].append(file)
    newest = max(windows, key=lambda name: max(file.stat().st_mtime for file in windows[name]))
    wanted = newest if step is None else f"step_{step}"
    if wanted not in windows:
        raise InputError(
            f"{path} has no profile from step {step} on. There are: {', '.join(sorted(windows))}."
        )
    return windows[wanted]


def read_profile(file: Path) -> Recorded:
    """Return the contents of a profile."""
    try:
        profile = ProfileData.from_file(str(file))
    except (RuntimeError, OSError) as error:
        raise InputError(f"{file} is not a profile, or is damaged: {error}") from None
    with warnings.catch_warnings():
        # JAX 0.12 warns when stats are first read, and aborts the process if warnings are errors.
        warnings.simplefilter("ignore", DeprecationWarning)
        recorded = _recorded(profile)
    if not (recorded.steps or recorded.devices):
        raise InputError(f"{file} holds neither steps nor operations: it is empty, or was cut short.")
    return recorded


def _recorded(profile: ProfileData) -> Recorded:
    planes = list(profile.planes)
    host = [_marked(line) for plane in planes if plane.name == "/host:CPU" for line in plane.lines]
    accelerators = {plane.name: ops for plane in planes if (ops := _accelerator_ops(plane))}
    events = [event for line in host for event in line]
    return Recorded(
        {int(stats["step_num"]): _span(event) for event, stats in events if "step_num" in stats},
        [_span(event) for event, _ in events if event.name == INPUT_WAIT] or None,
        accelerators or _cpu_ops(host),
    )


def _marked(line: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Return the events that are not Python frames, with their stats.

    Most are frames, whose stats read slowly.
    """
    return [(event, _stats(event)) for event in line.events if not event.name.startswith("$")]


def _accelerator_ops(plane: Any) -> list[Op]:
    if not plane.name.startswith("/device:"):
        return []
    lines = list(plane.lines)
    chosen = [line for line in lines if line.name == "XLA Ops"]
    chosen = chosen or [line for line in lines if line.name.startswith("Stream")]
    return [op for line in chosen for op in _framed([_op(event, _stats(event)) for event in line.events])]


def _cpu_ops(lines: Iterable[list[tuple[Any, dict[str, Any]]]]) -> dict[str, list[Op]]:
    """Return the operations of each CPU device; all share the host's threads."""
    devices: dict[str, list[Op]] = defaultdict(list)
    for line in lines:
        here: dict[str, list[Op]] = defaultdict(list)
        for event, stats in line:
            if "hlo_op" in stats and "device_ordinal" in stats:
                here[f"cpu:{stats['device_ordinal']}"].append(_op(event, stats))
        for device, ops in here.items():
            devices[device] += _framed(ops)
    return dict(sorted(devices.items()))


def _framed(ops: Sequence[Op]) -> list[Op]:
    """Return a line's operations in order, with those marked that contain another."""
    ordered = sorted(ops, key=lambda op: (op.span.start, -op.span.end))
    marked = [op._replace(is_outer=_lies_in(after.span, op.span)) for op, after in pairwise(ordered)]
    return marked + ordered[-1:]


def _lies_in(inner: Span, outer: Span) -> bool:
    return inner.start < outer.end and inner.end <= outer.end


def _op(event: Any, stats: Mapping[str, Any]) -> Op:
    on_a_tpu = event.name.split(" = ")[0].removeprefix("%")  # TPU events are named by their whole HLO line
    name, source = str(stats.get("hlo_op") or on_a_tpu), str(stats.get("tf_op", "")).rstrip(":")
    return Op(name, str(stats.get("hlo_module", "")), _span(event), source)


def _stats(event: Any) -> dict[str, Any]:
    return dict(event.stats)


def _span(event: Any) -> Span:
    return Span(event.start_ns / 1e9, event.end_ns / 1e9)
