"""The table of what lies where: name, shape, dtype, spec and bytes per device."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
from jax.sharding import NamedSharding

from meshwright import tree
from meshwright.errors import printable
from meshwright.shown import human_bytes
from meshwright.tables import aligned
from meshwright.tree import PyTree

WHOLE = "replicated"
LARGE_BYTES = 2**20
"""What is smaller is never warned of, nor what is less than a twentieth of all."""


@dataclass(frozen=True)
class Row:
    """One array of the table, or several alike that differ only in one number of their names."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    spec: str
    num_params: int
    device_bytes: int
    reason: str = ""

    @property
    def is_whole(self) -> bool:
        return self.spec == WHOLE


def rows(arrays: PyTree, shardings: PyTree, reasons: Mapping[str, str]) -> list[Row]:
    """Return a `Row` for each array, with repeated layers folded: `layers/{12 alike}/q`."""
    placed = tree.named_leaves(shardings)
    folded: dict[tuple[Any, ...], list[tuple[str, Row]]] = {}
    for name, x in tree.named_leaves(arrays).items():
        row = _row(name, x, placed[name], reasons.get(name, ""))
        pattern = re.sub(r"(?<=/)\d+(?=/)|^\d+(?=/)", "#", name, count=1)
        folded.setdefault((pattern, row.shape, row.dtype, row.spec, row.reason), []).append((name, row))
    return [_fold(pattern[0], [row for _, row in group]) for pattern, group in folded.items()]


def explain(
    arrays: PyTree,
    shardings: PyTree,
    reasons: Mapping[str, str] = MappingProxyType({}),
    *,
    width: int | None = None,
) -> str:
    """Return the table as text, with a line of totals, and a warning for each large array left whole.

    Args:
      arrays: arrays, or `ShapeDtypeStruct`s.
      shardings: a tree of `NamedSharding`s of the same structure.
      reasons: why an array is placed as it is, by its name.
      width: the most characters of a line of the table, whose longest texts then lose their middle.
    """
    found = rows(arrays, shardings, reasons)
    total = Row(
        "total", (), "", "", sum(row.num_params for row in found), sum(row.device_bytes for row in found)
    )
    header = ("name", "shape", "dtype", "spec", "parameters", "per device", "why")
    cells = [header[: None if reasons else -1], *(_cells(row, reasons) for row in (*found, total))]
    warnings = (f"  {line}" for line in left_whole(arrays, shardings, reasons))
    return "\n".join([*aligned(cells, right=(4, 5), width=width), *warnings])


def _splits_parameters(shardings: PyTree) -> bool:
    """Whether the mesh has an axis to split parameters over."""
    shapes = (sharding.mesh.shape for sharding in jax.tree.leaves(shardings))
    return any(shape.get(axis, 1) > 1 for shape in shapes for axis in ("fsdp", "expert", "tensor"))


def left_whole(
    arrays: PyTree, shardings: PyTree, reasons: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Return a line for each large array that every device has whole, if the mesh can split parameters.

    Args: as of `explain`.
    """
    if not _splits_parameters(shardings):
        return []
    found = rows(arrays, shardings, reasons)
    large = max(LARGE_BYTES, sum(row.device_bytes for row in found) / 20)
    return [
        f"{printable(row.name, keep='')} {_shape(row)} ({human_bytes(row.device_bytes)}) "
        f"stays whole on every device{f': {row.reason}' if row.reason else ''}"
        for row in found
        if row.is_whole and row.device_bytes >= large
    ]


def device_bytes(x: Any, sharding: NamedSharding) -> int:
    """Return the bytes of `x` that one device holds."""
    return math.prod(sharding.shard_shape(x.shape)) * x.dtype.itemsize


def _row(name: str, x: Any, sharding: NamedSharding, reason: str) -> Row:
    spec = ", ".join(
        "-" if entry is None else entry if isinstance(entry, str) else "+".join(entry)
        for entry in sharding.spec
    )
    return Row(
        name,
        tuple(x.shape),
        x.dtype.name,
        spec or WHOLE,
        math.prod(x.shape),
        device_bytes(x, sharding),
        reason,
    )


def _fold(pattern: str, alike: list[Row]) -> Row:
    first = alike[0]
    if len(alike) == 1:
        return first
    return Row(
        pattern.replace("#", f"{{{len(alike)} alike}}", 1),
        first.shape,
        first.dtype,
        first.spec,
        sum(row.num_params for row in alike),
        sum(row.device_bytes for row in alike),
        first.reason,
    )


def _cells(row: Row, reasons: Mapping[str, str]) -> tuple[str, ...]:
    cells = (
        printable(row.name, keep=""),
        "" if row.name == "total" else _shape(row),
        row.dtype,
        row.spec,
        f"{row.num_params:,}",
        human_bytes(row.device_bytes),
    )
    return (*cells, row.reason) if reasons else cells


def _shape(row: Row) -> str:
    return " × ".join(map(str, row.shape)) or "scalar"
