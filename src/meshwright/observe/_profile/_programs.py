"""The compiled programs in a profile: the place in the model that each of their operations comes from.

The profiler adds the programs of the process to the plane "/host:metadata", one event type for each, with a
stat that holds an `HloProto` (xplane.proto and hlo.proto of XLA; only the fields that are read are declared
here).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.base._internal import messages

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
    found: dict[str, Mapping[str, str]] = {}
    for module in _modules(file):  # programs for batches of several shapes have one name
        found[module.name] = {**_sources_of(module), **found.get(module.name, {})}
    return found


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

    A profile holds all programs of the process, also those that did not run. What programs of one name tell
    differently of an operation is left out.
    """
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module in _modules(file):
        for computation in module.computations:
            for op in computation.instructions:
                if written := _written(op):
                    found[module.name][op.name].add(written)
    return {
        program: {name: next(iter(written)) for name, written in ops.items() if len(written) == 1}
        for program, ops in found.items()
    }


def _written(op: Any) -> str:
    """Return the devices of a collective as text; "" if it has none, as other operations."""
    if op.source_target_pairs:
        pairs = ",".join(f"{{{each.source},{each.target}}}" for each in op.source_target_pairs)
        return f"source_target_pairs={{{pairs}}}"
    if op.HasField("mesh_groups"):
        return _written_mesh(op.mesh_groups)
    for iota in (op.iota_groups, op.collective_device_list.iota_groups):
        if iota.num_groups:
            order = f"T({_commas(iota.order)})" if iota.order else ""
            return f"replica_groups=[{iota.num_groups},{iota.num_devices}]<=[{_commas(iota.dims)}]{order}"
    if listed := op.replica_groups or op.collective_device_list.replica_groups:
        groups = ",".join(f"{{{_commas(group.replica_ids)}}}" for group in listed)
        return f"replica_groups={{{groups}}}"
    return ""


def _written_mesh(groups: Any) -> str:
    axes, devices = groups.mesh.axes, groups.mesh.devices
    sizes = ",".join(f"'{each.name}'={each.size}" for each in axes)
    order = f"T({_commas(devices.order)})" if devices.order else ""
    ids = f", device_ids=([{_commas(devices.dims)}]{order})" if devices.dims else ""
    taken = (
        f"'{axes[each.index].name}'" + (f":({each.part.before}){each.part.size}" if each.part.size else "")
        for each in groups.axes
    )
    return f"replica_groups=mesh[{sizes}]{ids} {{{','.join(taken)}}}"


def _commas(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _sources_of(module: Any) -> dict[str, str]:
    """Return the source of each operation. Of a fusion without one, it is what most of its parts have."""
    computations = {each.id: each.instructions for each in module.computations}
    found = {}
    for instructions in computations.values():
        for op in instructions:
            parts = (part for called in op.called_computation_ids for part in computations.get(called, ()))
            found[op.name] = op.metadata.op_name or _most_common(part.metadata.op_name for part in parts)
    return found


def _most_common(names: Any) -> str:
    counted = Counter(name for name in names if name)
    return counted.most_common(1)[0][0] if counted else ""
