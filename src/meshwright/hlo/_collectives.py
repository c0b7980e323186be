"""What a step exchanges between devices, read from the HLO text of the compiled step.

%all-gather.3 = f32[8,128]{1,0} all-gather(%p), replica_groups=[4,2]<=[8], dimensions={1}
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from meshwright.hlo._executions import Execution, executions
from meshwright.hlo._groups import Groups, device_groups, places_of
from meshwright.hlo._program import Computation, Instruction, Program, collective_of, nbytes, parse

MAX_SOURCE = 80  # letters
PASSED_ON = ("collective-permute", "collective-broadcast", "send")
"""Kinds of which a device sends all that it has."""


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
    """Return what a program, such as `compiled.as_text()`, exchanges.

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
    places, hosts = places_of(program, mesh), _hosts(mesh, devices_per_host)
    found = [
        _collective(each, device_groups(each.op, places), mesh, hosts)
        for run in executions(program)
        for each in exchanging(program, run)
    ]
    return [each for each in found if each.group_size > 1]


class Exchange(NamedTuple):
    """A collective in a program."""

    op: Instruction
    within: Computation
    caller: Instruction
    """The fusion that it is in, or itself."""
    run: Execution


def exchanging(program: Program, run: Execution) -> Iterator[Exchange]:
    """Yield the collectives of a computation and of its fusions; one that several share in the first."""
    spread: set[str | None] = set()
    for op in run.computation.values():
        if kind_of(op):
            yield Exchange(op, run.computation, op, run)
        for inner in filter(kind_of, program.fused(op).values()):
            channel = inner.attribute("channel_id")
            if channel is None or channel not in spread:
                yield Exchange(inner, program.fused(op), op, run)
            spread.add(channel)


def kind_of(op: Instruction) -> str | None:
    """Return which kind of collective an instruction is; of a pair of start and done, the first is one."""
    if op.opcode.endswith(("-done", "-update")):
        return None
    return _kind_of_send(op) if op.opcode == "send" else collective_of(op.opcode)


def _kind_of_send(op: Instruction) -> str | None:
    """Return what is done between slices of TPUs, which is sent through the hosts; callbacks are, too."""
    if over_slices := re.search(r'_xla_megascale_transfer_type="(\w+)"', op.attributes):
        kind = over_slices[1].lower().replace("_", "-")
        return "collective-permute" if kind == "one-to-one" else kind
    return None if "is_host_transfer=true" in op.attributes else "send"


def _collective(found: Exchange, groups: Groups, mesh: Mesh, hosts: np.ndarray) -> Collective:
    op, run = found.op, found.run
    size = max(map(len, groups), default=1)
    members = np.array([device for group in groups for device in group], int)
    firsts = np.array([group[0] for group in groups for _ in group], int)
    is_scattered = (found.caller.attribute("calls") or "").startswith("all-reduce-scatter")  # TPUs' name
    kind = "reduce-scatter" if is_scattered else kind_of(op) or ""
    given = sum(nbytes(found.within[name].type) for name in op.operands)
    whole = given * size if kind == "all-gather" else given
    return Collective(
        kind=kind,
        axes=_axes(members, firsts, mesh),
        group_size=size,
        times=run.times,
        nbytes=whole,
        sent_nbytes=_sent(kind, whole, size),
        crosses_processes=bool(np.any(hosts[members] != hosts[firsts])),
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


def _axes(members: np.ndarray, firsts: np.ndarray, mesh: Mesh) -> tuple[str, ...]:
    """Return the axes along which devices are elsewhere than the first ones of their groups."""
    places = zip(*(np.unravel_index(each, mesh.devices.shape) for each in (members, firsts)), strict=True)
    return tuple(axis for axis, (x, y) in zip(mesh.axis_names, places, strict=True) if np.any(x != y))
