"""The table of what lies where: name, shape, dtype, spec and bytes per device."""

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.sharding import NamedSharding

from meshwright import tree

PyTree = Any


@dataclass(frozen=True)
class Row:
    """One array of the table, or several alike that differ only in one number of their names."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    spec: str
    num_params: int
    device_bytes: int


def rows(arrays: PyTree, shardings: PyTree) -> list[Row]:
    """Return a `Row` for each array, with repeated layers folded: `layers/{0..11}/q`."""
    placed = tree.named_leaves(shardings)
    folded: dict[tuple[Any, ...], list[tuple[str, Row]]] = {}
    for name, x in tree.named_leaves(arrays).items():
        row = _row(name, x, placed[name])
        alike = (re.sub(r"(?<=/)\d+(?=/)|^\d+(?=/)", "#", name, count=1), row.shape, row.dtype, row.spec)
        folded.setdefault(alike, []).append((name, row))
    return [_fold(pattern[0], [row for _, row in group]) for pattern, group in folded.items()]


def explain(arrays: PyTree, shardings: PyTree) -> str:
    """Return the table as text, with a line of totals.

    Args:
      arrays: arrays, or `ShapeDtypeStruct`s.
      shardings: a tree of `NamedSharding`s of the same structure.
    """
    found = rows(arrays, shardings)
    total = Row(
        "total", (), "", "", sum(row.num_params for row in found), sum(row.device_bytes for row in found)
    )
    header = ("name", "shape", "dtype", "spec", "parameters", "per device")
    cells = [header, *(_cells(row) for row in (*found, total))]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    lines = [
        "  ".join(_aligned(cell, width, i) for i, (cell, width) in enumerate(zip(line, widths, strict=True)))
        for line in cells
    ]
    return "\n".join(line.rstrip() for line in lines)


def human_bytes(num_bytes: float) -> str:
    """Return `num_bytes` in binary units: `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.3g} TiB"


def device_bytes(x: Any, sharding: NamedSharding) -> int:
    """Return the bytes of `x` that one device holds."""
    return math.prod(sharding.shard_shape(x.shape)) * np.dtype(x.dtype).itemsize


def _row(name: str, x: Any, sharding: NamedSharding) -> Row:
    spec = ", ".join(
        "-" if entry is None else entry if isinstance(entry, str) else "+".join(entry)
        for entry in sharding.spec
    )
    return Row(
        name,
        tuple(x.shape),
        np.dtype(x.dtype).name,
        spec or "replicated",
        math.prod(x.shape),
        device_bytes(x, sharding),
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
    )


def _cells(row: Row) -> tuple[str, ...]:
    shape = " × ".join(map(str, row.shape)) or ("" if row.name == "total" else "scalar")
    return (row.name, shape, row.dtype, row.spec, f"{row.num_params:,}", human_bytes(row.device_bytes))


def _aligned(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if column >= 4 else cell.ljust(width)
