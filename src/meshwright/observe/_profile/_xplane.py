"""Profiles on a disk: their events as plain numbers, and the compiled programs in them.

    <run>/plugins/profile/step_100/<host>.xplane.pb               one process
    <run>/plugins/profile/step_100_process_0/<host>.xplane.pb     several processes

A profile consists of planes, lines and events (XSpace, xplane.proto of XLA). Operations of a TPU are on the
line "XLA Ops" of its plane, those of a GPU on its streams, and those of CPU devices on the threads of the
host's plane.

The programs name the place in the model that each operation comes from. The profiler adds the programs of the
process to the plane "/host:metadata", one event type for each, with a stat that holds an `HloProto`
(xplane.proto and hlo.proto of XLA; only the fields that are read are declared here).
"""

import glob
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from jax.profiler import ProfileData

from meshwright.base._internal import local_path, messages
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
    """Name of the compiled program; "" if the profile has none."""
    span: Span
    source: str = ""
    """Operation of the traced function that it comes from; "" if the event does not name one."""
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
    folders = ("plugins/profile/*/", "*/", "")
    # `glob.glob` leaves out folders that are removed meanwhile: a run that ends removes its board.
    names = (name for folder in folders for name in glob.glob(f"{folder}*.xplane.pb", root_dir=path))  # noqa: PTH207
    files = sorted(path / name for name in names)
    if not files:
        raise InputError(
            f"{path} has no profile: there is no *.xplane.pb in it, nor in its plugins/profile/*.\n"
            "  With profile.steps=100, a run takes a profile that begins at step 100."
        )
    # Each process of a run writes a file of its own; together they are one profile.
    windows = defaultdict(list)
    for file in files:
        windows[re.sub(r"_process_\d+$", "", file.parent.name)].append(file)
    newest = max(windows, key=lambda name: max(file.stat().st_mtime for file in windows[name]))
    window = newest if step is None else f"step_{step}"
    if window not in windows:
        raise InputError(
            f"{path} has no profile from step {step} on. There are: {', '.join(sorted(windows))}."
        )
    return windows[window]


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
    # A GPU has no line "XLA Ops", but one for each stream.
    chosen = chosen or [line for line in lines if line.name.startswith("Stream")]
    return [op for line in chosen for op in _framed([_op(event, _stats(event)) for event in line.events])]


def _cpu_ops(lines: Iterable[list[tuple[Any, dict[str, Any]]]]) -> dict[str, list[Op]]:
    """Return the operations of each CPU device; all share the host's threads."""
    devices: dict[str, list[Op]] = defaultdict(list)
    for line in lines:
        ops_of_line: dict[str, list[Op]] = defaultdict(list)
        for event, stats in line:
            if "hlo_op" in stats and "device_ordinal" in stats:
                ops_of_line[f"cpu:{stats['device_ordinal']}"].append(_op(event, stats))
        for device, ops in ops_of_line.items():
            devices[device] += _framed(ops)
    return dict(sorted(devices.items()))


def _framed(ops: Sequence[Op]) -> list[Op]:
    """Return a line's operations in order, with those marked that contain another."""
    ordered = sorted(ops, key=lambda op: (op.span.start, -op.span.end))
    # An operation contains the next one, if that ends within it.
    marked = [
        op._replace(is_outer=following.span.start < op.span.end and following.span.end <= op.span.end)
        for op, following in pairwise(ordered)
    ]
    return marked + ordered[-1:]


def _op(event: Any, stats: Mapping[str, Any]) -> Op:
    # TPU events are named by their whole HLO line.
    on_a_tpu = event.name.split(" = ")[0].removeprefix("%")
    name, source = str(stats.get("hlo_op") or on_a_tpu), str(stats.get("tf_op", "")).rstrip(":")
    return Op(name, str(stats.get("hlo_module", "")), _span(event), source)


def _stats(event: Any) -> dict[str, Any]:
    return dict(event.stats)


def _span(event: Any) -> Span:
    return Span(event.start_ns / 1e9, event.end_ns / 1e9)


_PLANE = "/host:metadata"

Sources = Mapping[str, Mapping[str, str]]
"""By the name of a program and of its operation: the operation of the traced function that it comes from,
such as `jit(step)/jvp(head)/dot_general`."""


@cache
def _declared() -> dict[str, Any]:
    return messages(
        "meshwright.xspace",
        {
            "Space": ["repeated Plane planes = 1"],
            "Plane": ["string name = 2", "repeated Entry event_metadata = 4"],
            "Entry": ["EventMetadata value = 2"],
            "EventMetadata": ["string name = 2", "repeated Stat stats = 5"],
            "Stat": ["bytes bytes_value = 6"],
            "Hlo": ["Module hlo_module = 1"],
            "Module": ["string name = 1", "repeated Computation computations = 3"],
            "Computation": ["repeated Instruction instructions = 2", "int64 id = 5"],
            "Instruction": [
                "string name = 1",
                "OpMetadata metadata = 7",
                "repeated int64 called_computation_ids = 38",
                "repeated Group replica_groups = 49",
                "repeated Pair source_target_pairs = 52",
                "Devices collective_device_list = 87",
                "Iota iota_groups = 92",
                "MeshGroups mesh_groups = 93",
            ],
            "Group": ["repeated int64 replica_ids = 1"],
            "Pair": ["int64 source = 1", "int64 target = 2"],
            "Devices": ["repeated Group replica_groups = 1", "Iota iota_groups = 2"],
            "Iota": [
                "int64 num_groups = 1",
                "int64 num_devices = 2",
                "repeated int64 dims = 3",
                "repeated int64 order = 4",
            ],
            "MeshGroups": ["DeviceMesh mesh = 1", "repeated AxisRef axes = 2"],
            "DeviceMesh": ["repeated Axis axes = 1", "DeviceOrder devices = 3"],
            "Axis": ["string name = 1", "int64 size = 2"],
            "DeviceOrder": ["repeated int64 dims = 1", "repeated int64 order = 2"],
            "AxisRef": ["int64 index = 1", "SubAxis part = 2"],
            "SubAxis": ["int64 before = 1", "int64 size = 2"],
            "OpMetadata": ["string op_name = 2"],
        },
    )


def sources_in(file: Path) -> Sources:
    """Return the sources of the operations of all programs in a profile; empty if it has no programs."""
    sources: dict[str, Mapping[str, str]] = {}
    # Programs for batches of several shapes have one name.
    for module in _modules(file):
        sources[module.name] = {**_sources_of(module), **sources.get(module.name, {})}
    return sources


def _modules(file: Path) -> Iterator[Any]:
    """Yield the programs in a profile."""
    declared = _declared()
    for plane in declared["Space"].FromString(file.read_bytes()).planes:
        for entry in plane.event_metadata if plane.name == _PLANE else ():
            for stat in entry.value.stats:
                module = declared["Hlo"].FromString(stat.bytes_value).hlo_module
                if module.computations:
                    yield module


def groups_in(file: Path) -> Sources:
    """Return, by program and operation, the devices of collectives, written as in an HLO text.

    A profile holds all programs of the process, also those that did not run. Operations that
    differ between programs of one name are left out.
    """
    groups: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module in _modules(file):
        for computation in module.computations:
            for op in computation.instructions:
                if text := _groups_text(op):
                    groups[module.name][op.name].add(text)
    return {
        program: {name: next(iter(text)) for name, text in ops.items() if len(text) == 1}
        for program, ops in groups.items()
    }


def _groups_text(op: Any) -> str:
    """Return the devices of a collective as text; "" if it has none, as other operations."""
    if op.source_target_pairs:
        pairs = ",".join(f"{{{pair.source},{pair.target}}}" for pair in op.source_target_pairs)
        return f"source_target_pairs={{{pairs}}}"
    if op.HasField("mesh_groups"):
        return _mesh_groups_text(op.mesh_groups)
    for iota in (op.iota_groups, op.collective_device_list.iota_groups):
        if iota.num_groups:
            order = f"T({_commas(iota.order)})" if iota.order else ""
            return f"replica_groups=[{iota.num_groups},{iota.num_devices}]<=[{_commas(iota.dims)}]{order}"
    if listed := op.replica_groups or op.collective_device_list.replica_groups:
        groups = ",".join(f"{{{_commas(group.replica_ids)}}}" for group in listed)
        return f"replica_groups={{{groups}}}"
    return ""


def _mesh_groups_text(groups: Any) -> str:
    axes, devices = groups.mesh.axes, groups.mesh.devices
    sizes = ",".join(f"'{axis.name}'={axis.size}" for axis in axes)
    order = f"T({_commas(devices.order)})" if devices.order else ""
    ids = f", device_ids=([{_commas(devices.dims)}]{order})" if devices.dims else ""
    used_axes = (
        f"'{axes[axis.index].name}'" + (f":({axis.part.before}){axis.part.size}" if axis.part.size else "")
        for axis in groups.axes
    )
    return f"replica_groups=mesh[{sizes}]{ids} {{{','.join(used_axes)}}}"


def _commas(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _sources_of(module: Any) -> dict[str, str]:
    """Return the source of each operation. A fusion without one gets the source of most of its parts."""
    computations = {computation.id: computation.instructions for computation in module.computations}
    sources = {}
    for instructions in computations.values():
        for op in instructions:
            parts = (part for called in op.called_computation_ids for part in computations.get(called, ()))
            sources[op.name] = op.metadata.op_name or _most_common(part.metadata.op_name for part in parts)
    return sources


def _most_common(names: Any) -> str:
    counted = Counter(name for name in names if name)
    return counted.most_common(1)[0][0] if counted else ""
