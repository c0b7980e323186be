"""What a step exchanges between devices, read from the HLO text of the compiled step.

    %all-gather.3 = f32[8,128]{1,0} all-gather(%p), replica_groups=[4,2]<=[8], dimensions={1}

Who takes part is written in one of four ways, all of them meaning {0,2} and {1,3} here:

    replica_groups={{0,2},{1,3}}                      listed; {} is all devices
    replica_groups=[2,2]<=[2,2]T(1,0)                 0, 1, 2, 3 as [2,2], transposed, as [2,2]: a group a row
    replica_groups=mesh['a'=2,'b'=2] {'a'}            0, 1, 2, 3 as a mesh: those along its axis a
    source_target_pairs={{0,2},{2,0},{1,3},{3,1}}     of a permutation
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from meshwright.errors import UsageError
from meshwright.profiling._measure import collective_of
from meshwright.profiling._program import (
    Computation,
    Execution,
    Instruction,
    Program,
    executions,
    nbytes,
    parse,
)

MAX_SOURCE = 80  # letters
PASSED_ON = ("collective-permute", "collective-broadcast", "send")
"""Kinds of which a device sends all that it has."""

Groups = Sequence[Sequence[int]]
"""Numbers of devices, those that take part together in one row."""


@dataclass(frozen=True)
class Collective:
    """One exchange of a program."""

    kind: str
    """As in HLO: `all-gather`, `reduce-scatter`, `all-reduce`, `all-to-all`, `collective-permute`, …"""
    axes: tuple[str, ...]
    """The axes of the mesh along which its devices differ, in the mesh's order."""
    group_size: int
    """How many devices take part together."""
    times: int
    """How often a step does it, the turns of all loops around it multiplied."""
    nbytes: int
    """Of one time, on one device: of the whole array, which is the result of an all-gather, and the operand
    of the other kinds."""
    sent_nbytes: int
    """What a device sends of one time, where n devices stand in a ring: n - 1 times an n-th of the array, and
    of an all-reduce twice that (Patarasuk and Yuan, 2009); of a permutation all."""
    crosses_processes: bool
    """Whether devices that take part together are of several processes."""
    source: str
    """Which operation of the traced function it comes from, shortened; "" where the compiler does not say."""
    in_open_loop: bool = False
    """It is in a loop whose number of turns is not known, and `times` is for one turn."""


def collectives(hlo: str, mesh: Mesh, *, devices_per_host: int | None = None) -> list[Collective]:
    """Return what a program, such as `compiled.as_text()`, exchanges, in the order of its text.

    Async pairs count once, and so do the several fusions that one exchange is spread over on a TPU. Of the
    branches of a condition only the one that makes the most bytes counts. What a device exchanges with itself
    is left out.

    Args:
      mesh: whose devices, in its order, the program was compiled for.
      devices_per_host: so many devices, in the order of their ids, are a process's; instead of what they
        say. For meshes of virtual devices.

    Raises:
      UsageError: the program is for another number of devices than the mesh has.
      ValueError: the devices of a collective are written in a way that is not known.
    """
    program = parse(hlo)
    if program.num_partitions not in (1, mesh.size):
        raise UsageError(
            f"the program is for {program.num_partitions} devices, and the mesh {dict(mesh.shape)} has "
            f"{mesh.size}.\n  Give the mesh that it was compiled for."
        )
    hosts = _hosts(mesh, devices_per_host)
    found = [
        _collective(each, mesh, hosts) for run in executions(program) for each in _exchanging(program, run)
    ]
    return [each for each in found if each.group_size > 1]


def device_groups(op: Instruction, num_devices: int) -> Groups:
    """Return the devices that take part in a collective together.

    Raises:
      ValueError: they are written in a way that is not known.
    """
    written = op.attributes
    if pairs := re.search(r"source_target_pairs=\{([\d,{}]*)\}", written):
        return _connected(_listed(pairs[1]))
    if listed := re.search(r"replica_groups=\{([\d,{}]*)\}", written):
        return _listed(listed[1]) or [list(range(num_devices))]
    if rows := re.search(r"replica_groups=\[([\d,]+)\]<=([\d,\[\]T()]+)", written):
        return _order(rows[2]).reshape(_ints(rows[1])).tolist()
    if named := re.search(r"replica_groups=mesh\[([^]]*)\](?:, device_ids=\((\S*)\))? \{([^}]*)\}", written):
        return _along_axes(*named.groups(default=""))
    raise ValueError(f"cannot read the devices of {op.opcode} {op.name}: {written[:300]}")


class _Exchange(NamedTuple):
    op: Instruction
    within: Computation
    caller: Instruction
    """The fusion that it is in, or itself."""
    run: Execution


def _exchanging(program: Program, run: Execution) -> Iterator[_Exchange]:
    spread: set[str | None] = {None}
    for op in run.computation.values():
        if _kind(op):
            yield _Exchange(op, run.computation, op, run)
        for inner in filter(_kind, program.fused(op).values()):
            channel = inner.attribute("channel_id")
            if channel not in spread or channel is None:
                yield _Exchange(inner, program.fused(op), op, run)
            spread.add(channel)


def _kind(op: Instruction) -> str | None:
    """Return which kind of collective an instruction is; of a pair of start and done, the first is one."""
    if op.opcode.endswith(("-done", "-update")):
        return None
    return "send" if op.opcode == "send" else collective_of(op.opcode)


def _collective(found: _Exchange, mesh: Mesh, hosts: np.ndarray) -> Collective:
    op, run = found.op, found.run
    groups = device_groups(op, mesh.size)
    size = max(map(len, groups), default=1)
    kind = _kind(op) or ""
    if (found.caller.attribute("calls") or "").startswith("all-reduce-scatter"):  # what TPUs make of one
        kind = "reduce-scatter"
    whole = sum(nbytes(found.within[name].type) for name in op.operands) * (
        size if kind == "all-gather" else 1
    )
    return Collective(
        kind=kind,
        axes=_axes(groups, mesh),
        group_size=size,
        times=run.times,
        nbytes=whole,
        sent_nbytes=_sent(kind, whole, size),
        crosses_processes=any(len(set(hosts[group])) > 1 for group in groups),
        source=_shortened(op.source or found.caller.source),
        in_open_loop=run.in_open_loop,
    )


def _sent(kind: str, whole: int, group_size: int) -> int:
    if kind in PASSED_ON:
        return whole
    return whole * (group_size - 1) // group_size * (2 if kind == "all-reduce" else 1)


def _shortened(source: str) -> str:
    """Leave out what all sources of a step have in them: `transpose(jvp())/while/dot_general`."""
    source = re.sub(r"^jit\([^)]*\)/|\b(?:body|closed_call|checkpoint|rematted_computation)/", "", source)
    return source if len(source) <= MAX_SOURCE else source[: MAX_SOURCE - 1] + "…"


def _hosts(mesh: Mesh, devices_per_host: int | None) -> np.ndarray:
    """Return the host of each device of a mesh, in its order."""
    if devices_per_host is None:
        return np.array([device.process_index for device in mesh.devices.flat])
    ids = np.array([device.id for device in mesh.devices.flat])
    return np.argsort(np.argsort(ids)) // devices_per_host


def _axes(groups: Groups, mesh: Mesh) -> tuple[str, ...]:
    """Return the axes along which devices of one group differ."""
    differ: set[str] = set()
    for group in groups:
        places = np.unravel_index(group, mesh.devices.shape)
        differ |= {axis for axis, place in zip(mesh.axis_names, places, strict=True) if len(set(place)) > 1}
    return tuple(axis for axis in mesh.axis_names if axis in differ)


def _ints(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _listed(text: str) -> list[list[int]]:
    """Read `{0,1},{2,3}`."""
    return [_ints(group) for group in re.findall(r"\{([^{}]*)\}", text)]


def _order(text: str) -> np.ndarray:
    """Read `[2,4]T(1,0)`: 0, 1, 2, … in this shape, with its dimensions in this order; or `0,2,1,3`."""
    shape = re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if shape is None:
        return np.array(_ints(text))
    sizes = _ints(shape[1])
    return np.arange(math.prod(sizes)).reshape(sizes).transpose(_ints(shape[2]) if shape[2] else None).ravel()


def _along_axes(mesh: str, device_ids: str, axes: str) -> Groups:
    """Read `'a'=4,'b'=2`, with the order of the devices if it is not 0, 1, 2, …, and axes `'b','a':(2)2`.

    `'a':(2)2` is a part of an axis of 4 or more: the part of size 2 that is inside of one of size 2.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", mesh)}
    taken = re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", axes)
    parts = [
        part for name, size in sizes.items() for part in _parts(size, [t[1:] for t in taken if t[0] == name])
    ]
    devices = _order(device_ids) if device_ids else np.arange(math.prod(sizes.values()))
    last = [number for number, (_, is_taken) in enumerate(parts) if is_taken]
    first = [number for number, (_, is_taken) in enumerate(parts) if not is_taken]
    split = devices.reshape([size for size, _ in parts]).transpose(first + last)
    return split.reshape(-1, math.prod(parts[number][0] for number in last)).tolist()


def _parts(size: int, taken: Sequence[tuple[str, str]]) -> list[tuple[int, bool]]:
    """Return the sizes that an axis is split in, and which of them are taken: `[("", "")]` is all of it."""
    if len(taken) == 0 or not taken[0][0]:
        return [(size, len(taken) > 0)]
    parts, outer = [], 1
    for before, part in sorted((int(before), int(part)) for before, part in taken):
        parts += [(before // outer, False), (part, True)]
        outer = before * part
    return [*parts, (size // outer, False)]


def _connected(pairs: Groups) -> Groups:
    """Return the devices that are joined by pairs of source and target."""
    groups: dict[int, set[int]] = {}
    for pair in pairs:
        fewer, more = sorted((groups.setdefault(device, {device}) for device in pair), key=len)
        more |= fewer
        groups.update(dict.fromkeys(fewer, more))
    return [sorted(group) for group in {id(group): group for group in groups.values()}.values()]
