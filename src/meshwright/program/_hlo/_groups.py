"""The groups of devices of a collective, read from its line in an HLO text.

They are written in one of these ways; the first four mean {0,2} and {1,3} here:

    replica_groups={{0,2},{1,3}}                      listed; {} is all devices
    replica_groups=[2,2]<=[2,2]T(1,0)                 0, 1, 2, 3 as [2,2], transposed, as [2,2]: a row a group
    replica_groups=mesh['a'=2,'b'=2] {'a'}            0, 1, 2, 3 as a mesh: groups along its axis a
    source_target_pairs={{0,2},{2,0},{1,3},{3,1}}     of a permutation

A program for several TPU slices is the program of one slice, and numbers that slice's devices. Its exchange
with other slices passes through the hosts, to devices numbered 100,000 × slice (from 1) + place in the slice:

    _xla_megascale_target={{100000,200000},{100001,200001}}
    _xla_megascale_target={{100000->200000},{200000->100000}}
    _xla_megascale_target="{1,2}x{0:1}"               slices and places: as the first
"""

import math
import re
from collections.abc import Sequence

import numpy as np
from jax.sharding import Mesh

from meshwright.errors import UsageError
from meshwright.program._hlo._program import Instruction, Program

SLICE = 100_000
_MESH_GROUPS = re.compile(r"replica_groups=mesh\[([^]]*)\](?:, device_ids=\((\S*)\))? \{([^}]*)\}")

Groups = Sequence[Sequence[int]]
"""Numbers of devices; each row is a group that takes part together."""


def positions_of(program: Program, mesh: Mesh) -> np.ndarray:
    """Return int[slices, partitions]: the index of each device of a program in the flattened mesh."""
    size = program.num_partitions
    if mesh.size == size:
        return np.arange(size)[None]
    if size == 1 or mesh.size % size:
        raise UsageError(
            f"the program is for {size} devices, but the mesh {dict(mesh.shape)} has {mesh.size}.\n"
            "  Give the mesh that it was compiled for."
        )
    slices = [getattr(device, "slice_index", 0) for device in mesh.devices.flat]
    return np.argsort(slices, kind="stable").reshape(-1, size)


def device_groups(op: Instruction, positions: np.ndarray) -> Groups:
    """Return the groups of devices of a collective, as indices in the flattened mesh."""
    if target := re.search(r'_xla_megascale_target=(\{\{.*?\}\}|"[^"]*")', op.attributes):
        groups = _over_slices(target[1])
        return [[int(positions[n // SLICE - 1, n % SLICE]) for n in group] for group in groups]
    return [
        positions[0, list(group)].tolist()
        for group in groups_written(op.attributes, positions.shape[1], f"{op.opcode} {op.name}")
    ]


def groups_written(attributes: str, num_devices: int, name: str = "a collective") -> Groups:
    """Return the groups of devices in the attributes of a collective, by their numbers in its slice."""
    if pairs := re.search(r'source_target_pairs="?\{([\d,{}]*)\}', attributes):
        return _connected(_listed(pairs[1]))
    if listed := re.search(r"replica_groups=\{([\d,{}]*)\}", attributes):
        return _listed(listed[1]) or [list(range(num_devices))]
    if rows := re.search(r"replica_groups=\[([\d,]+)\]<=([\d,\[\]T()]+)", attributes):
        return _order(rows[2]).reshape(_ints(rows[1])).tolist()
    if named := _MESH_GROUPS.search(attributes):
        return _along_axes(*named.groups(default=""))
    raise ValueError(f"cannot read the devices of {name}: {attributes[:300]}")


def _over_slices(target: str) -> Groups:
    if product := re.match(r'"\{([\d,]+)\}x\{(\d+):(\d+)\}"', target):
        slices, first, last = _ints(product[1]), int(product[2]), int(product[3])
        return [[SLICE * number + position for number in slices] for position in range(first, last + 1)]
    return _connected(_listed(target)) if "->" in target else _listed(target)


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
    order = _ints(shape[2]) if shape[2] else range(len(sizes))
    return np.arange(math.prod(sizes)).reshape(sizes).transpose(order).ravel()


def _along_axes(mesh: str, device_ids: str, axes: str) -> Groups:
    """Read `'a'=4,'b'=2`, with the order of the devices if it is not 0, 1, 2, …, and axes `'b','a':(2)2`.

    `'a':(2)2` is a part of an axis of 4 or more: the part of size 2 that is inside of one of size 2.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", mesh)}
    used = re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", axes)
    parts = [
        part for name, size in sizes.items() for part in _parts(size, [t[1:] for t in used if t[0] == name])
    ]
    devices = _order(device_ids) if device_ids else np.arange(math.prod(sizes.values()))
    last = [number for number, (_, is_taken) in enumerate(parts) if is_taken]
    first = [number for number, (_, is_taken) in enumerate(parts) if not is_taken]
    split = devices.reshape([size for size, _ in parts]).transpose(first + last)
    return split.reshape(-1, math.prod(parts[number][0] for number in last)).tolist()


def _parts(size: int, used: Sequence[tuple[str, str]]) -> list[tuple[int, bool]]:
    """Return the sizes that an axis is split into, each with True if used: `[("", "")]` uses the whole."""
    if len(used) == 0 or not used[0][0]:
        return [(size, len(used) > 0)]
    parts, outer = [], 1
    for outer_size, part in sorted((int(outer_size), int(part)) for outer_size, part in used):
        parts += [(outer_size // outer, False), (part, True)]
        outer = outer_size * part
    return [*parts, (size // outer, False)]


def _connected(pairs: Groups) -> Groups:
    """Return the groups of devices that are joined by pairs of source and target."""
    groups: dict[int, set[int]] = {}
    for pair in pairs:
        fewer, more = sorted((groups.setdefault(device, {device}) for device in pair), key=len)
        more |= fewer
        groups.update(dict.fromkeys(fewer, more))
    return [sorted(group) for group in {id(group): group for group in groups.values()}.values()]
