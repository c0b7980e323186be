"""Collectives of a step, read from the HLO text of the compiled step.

%all-gather.3 = f32[8,128]{1,0} all-gather(%p), replica_groups=[4,2]<=[8], dimensions={1}
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from meshwright.program._hlo._executions import Execution, executions
from meshwright.program._hlo._groups import Groups, device_groups, groups_written, positions_of
from meshwright.program._hlo._program import Computation, Instruction, Program, collective_of, nbytes, parse

# Letters of a source.
MAX_SOURCE = 80
PASSED_ON = ("collective-permute", "collective-broadcast", "send")
"""Kinds in which a device sends all of its data."""


@dataclass(frozen=True)
class Collective:
    """A collective of a program."""

    kind: str
    """Name in HLO: `all-gather`, `reduce-scatter`, `all-reduce`, `all-to-all`, `collective-permute`, …"""
    axes: tuple[str, ...]
    """Mesh axes along which the participating devices differ, in the order of the mesh."""
    group_size: int
    """Number of devices that take part together."""
    times: int
    """Number of executions in a step, with the iterations of all enclosing loops."""
    nbytes: int
    """Bytes of the whole array, on one device: the result of an all-gather, the operand of other kinds."""
    sent_nbytes: int
    """Bytes that one device sends in one execution, in a ring of n devices.

    It is (n - 1) / n of the array, twice that for an all-reduce (Patarasuk and Yuan, 2009), and all of it for
    a permutation.
    """
    crosses_processes: bool
    """True if the participating devices belong to several processes."""
    source: str
    """Operation of the traced function that it comes from, shortened; "" if the compiler does not say."""
    in_open_loop: bool = False
    """True if it is in a loop with an unknown number of iterations; `times` then counts one iteration."""


def collectives(hlo: str, mesh: Mesh, *, devices_per_host: int | None = None) -> list[Collective]:
    """Return the collectives of a compiled program.

    Async pairs count once, and so do several fusions that share one collective on a TPU. Of a condition's
    branches only the one that makes most bytes counts, or the one that makes least if the condition is in a
    `jax.named_scope("seldom")`. A collective of a device with itself is left out.

    Args:
      hlo: HLO text, such as `compiled.as_text()`.
      mesh: The mesh that the program was compiled for.
      devices_per_host: Number of consecutive device ids that belong to one process, for meshes of virtual
        devices. By default the devices have their process.

    Raises:
      UsageError: The program is for another number of devices than the mesh has.
      ValueError: The devices of a collective are written in an unknown form.

    Example:
      >>> mesh = mw.make_mesh("data=8")
      >>> x = jax.ShapeDtypeStruct((8, 64), jnp.float32, sharding=mw.Layout(mesh).batch_sharding)
      >>> compiled = jax.jit(lambda x: x.sum()).lower(x).compile()
      >>> [(x.kind, x.axes) for x in mw.observe.collectives(compiled.as_text(), mesh)]
      [('all-reduce', ('data',))]
    """
    program = parse(hlo)
    positions, hosts = positions_of(program, mesh), _hosts(mesh, devices_per_host)
    candidates = [
        _collective(exchange, device_groups(exchange.op, positions), mesh, hosts)
        for run in executions(program)
        for exchange in exchanging(program, run)
    ]
    return [collective for collective in candidates if collective.group_size > 1]


def axes_written(attributes: str, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the mesh axes along which the devices of a collective differ.

    Example:
      >>> mw.program._internal.axes_written("replica_groups={{0,1},{2,3}}", {"data": 2, "fsdp": 2})
      ('fsdp',)
    """
    shape = tuple(sizes.values())
    groups = groups_written(attributes, math.prod(shape))
    members = np.array([device for group in groups for device in group], int)
    firsts = np.array([group[0] for group in groups for _ in group], int)
    return _axes(members, firsts, tuple(sizes), shape)


class Exchange(NamedTuple):
    """A collective instruction, and its place in a program."""

    op: Instruction
    """The instruction."""
    within: Computation
    """The computation that contains it."""
    caller: Instruction
    """The fusion that contains it, or the instruction itself."""
    run: Execution
    """The execution of the computation."""


def exchanging(program: Program, run: Execution) -> Iterator[Exchange]:
    """Yield the collectives of a computation and of its fusions; a shared one comes with the first."""
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
    """Return the kind of a collective instruction; of an async pair, only the start has one."""
    if op.opcode.endswith(("-done", "-update")):
        return None
    return _kind_of_send(op) if op.opcode == "send" else collective_of(op.opcode)


def _kind_of_send(op: Instruction) -> str | None:
    """Return the kind of a transfer between TPU slices, which passes through the hosts, as callbacks do."""
    if over_slices := re.search(r'_xla_megascale_transfer_type="(\w+)"', op.attributes):
        kind = over_slices[1].lower().replace("_", "-")
        return "collective-permute" if kind == "one-to-one" else kind
    return None if "is_host_transfer=true" in op.attributes else "send"


def _collective(exchange: Exchange, groups: Groups, mesh: Mesh, hosts: np.ndarray) -> Collective:
    op, run = exchange.op, exchange.run
    size = max(map(len, groups), default=1)
    members = np.array([device for group in groups for device in group], int)
    firsts = np.array([group[0] for group in groups for _ in group], int)
    # XLA for TPUs names the fusion of an all-reduce that leaves each device its part so.
    is_scattered = (exchange.caller.attribute("calls") or "").startswith("all-reduce-scatter")
    kind = "reduce-scatter" if is_scattered else kind_of(op) or ""
    operand_nbytes = sum(nbytes(exchange.within[name].type) for name in op.operands)
    whole = operand_nbytes * size if kind == "all-gather" else operand_nbytes
    return Collective(
        kind=kind,
        axes=_axes(members, firsts, mesh.axis_names, mesh.devices.shape),
        group_size=size,
        times=run.times,
        nbytes=whole,
        sent_nbytes=_sent(kind, whole, size),
        crosses_processes=bool(np.any(hosts[members] != hosts[firsts])),
        source=_shortened(op.source or exchange.caller.source),
        in_open_loop=run.in_open_loop,
    )


def _sent(kind: str, whole: int, group_size: int) -> int:
    if kind in PASSED_ON:
        return whole
    return whole * (group_size - 1) // group_size * (2 if kind == "all-reduce" else 1)


def _shortened(source: str) -> str:
    """Remove the parts that are common to all sources: `transpose(jvp())/while/dot_general`."""
    source = re.sub(r"^jit\([^)]*\)/|\b(?:body|closed_call|checkpoint|rematted_computation)/", "", source)
    return source if len(source) <= MAX_SOURCE else source[: MAX_SOURCE - 1] + "…"


def _hosts(mesh: Mesh, devices_per_host: int | None) -> np.ndarray:
    """Return the host of each device of a mesh, in the order of the mesh."""
    if devices_per_host is None:
        return np.array([device.process_index for device in mesh.devices.flat])
    ids = np.array([device.id for device in mesh.devices.flat])
    return np.argsort(np.argsort(ids)) // devices_per_host


def _axes(
    members: np.ndarray, firsts: np.ndarray, names: Sequence[str], shape: tuple[int, ...]
) -> tuple[str, ...]:
    """Return the axes along which devices differ from the first ones of their groups."""
    positions = zip(*(np.unravel_index(devices, shape) for devices in (members, firsts)), strict=True)
    return tuple(axis for axis, (x, y) in zip(names, positions, strict=True) if np.any(x != y))
