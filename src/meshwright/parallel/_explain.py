"""The table of placements: name, shape, dtype, spec and bytes per device of each array."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from types import MappingProxyType
from typing import Any, Self

import jax
from jax.sharding import NamedSharding

from meshwright.base._internal import PyTree, aligned, human_bytes, tree
from meshwright.errors import printable
from meshwright.parallel._axes import Use, axis_named

WHOLE = "replicated"
_NUMBERS = (4, 5)
"""The columns of numbers."""
LARGE_BYTES = 2**20
"""Smaller arrays never cause a warning, nor do arrays below a twentieth of the total."""


@dataclass(frozen=True)
class Row:
    """A line of the table: one array, or several equal ones whose names differ in one number."""

    name: str
    shape: tuple[int, ...]
    """Shape of each array."""
    dtype: str
    spec: str
    num_params: int
    """Number of elements of all arrays of the row."""
    device_bytes: int
    """Bytes of all arrays of the row on one device."""
    reason: str = ""
    """Reason of the placement, if the rule gives one."""
    is_frozen: bool = False
    """True if the arrays are not trained."""

    @property
    def is_whole(self) -> bool:
        return self.spec == WHOLE


class PlacementTable(str):
    """The table of placements as text. A notebook shows it as a table, if it is the last value of a cell."""

    cells: Sequence[Sequence[str]] = ()
    """The cells by line, whole: first the header, last the totals."""
    warnings: Sequence[str] = ()
    """The lines about large arrays that no axis splits."""

    @classmethod
    def from_cells(cls, cells: Sequence[Sequence[str]], warnings: Sequence[str], width: int | None) -> Self:
        """Return a table of cells."""
        lines = aligned(cells, right=_NUMBERS, width=width)
        table = cls("\n".join([*lines, *(f"  {line}" for line in warnings)]))
        table.cells, table.warnings = cells, warnings
        return table

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        # By default IPython's terminal shows the line breaks as \\n.
        printer.text(str(self))

    def _repr_html_(self) -> str:
        header, *lines = self.cells
        head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
        body = "".join(f"<tr>{''.join(map(_html_cell, range(len(line)), line))}</tr>" for line in lines)
        below = "".join(f"<p>{escape(line)}</p>" for line in self.warnings)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def _html_cell(column: int, cell: str) -> str:
    style = ' style="text-align: right"' if column in _NUMBERS else ""
    return f"<td{style}>{escape(cell)}</td>"


def rows(
    arrays: PyTree, shardings: PyTree, reasons: Mapping[str, str], frozen: Collection[str] = ()
) -> list[Row]:
    """Return a `Row` for each array, with repeated layers folded: `layers/{12 alike}/q`."""
    placed = tree.named_leaves(shardings)
    folded: dict[tuple[Any, ...], list[tuple[str, Row]]] = {}
    for name, x in tree.named_leaves(arrays).items():
        row = replace(_row(name, x, placed[name], reasons.get(name, "")), is_frozen=name in frozen)
        pattern = re.sub(r"(?<=/)\d+(?=/)|^\d+(?=/)", "#", name, count=1)
        alike = (pattern, row.shape, row.dtype, row.spec, row.reason, row.is_frozen)
        folded.setdefault(alike, []).append((name, row))
    return [_fold(pattern[0], [row for _, row in group]) for pattern, group in folded.items()]


def explain(
    arrays: PyTree,
    shardings: PyTree,
    reasons: Mapping[str, str] = MappingProxyType({}),
    *,
    frozen: Collection[str] = (),
    width: int | None = None,
) -> PlacementTable:
    """Return the table of placements, a text, with totals and a warning for each large unsplit array.

    Example:
      >>> layout = mw.Layout(mw.make_mesh("fsdp=8"))
      >>> arrays = {"w": jnp.ones((1024, 256))}
      >>> print(mw.parallel._internal.explain(arrays, layout.shardings(arrays)))
      name   shape       dtype    spec  parameters  per device
      w      1024 × 256  float32  fsdp     262,144     128 KiB
      total                                262,144     128 KiB
    """
    lines = rows(arrays, shardings, reasons, frozen)
    total = Row(
        "total", (), "", "", sum(row.num_params for row in lines), sum(row.device_bytes for row in lines)
    )
    header = ["name", "shape", "dtype", "spec", "parameters", "per device"]
    marks = [["trained"], *(["frozen" if row.is_frozen else "yes"] for row in lines), [""]]
    why = [["why"], *([row.reason] for row in lines), [""]]
    more = [column for column, is_shown in ((marks, frozen), (why, reasons)) if is_shown]
    parts = zip([header, *map(_cells, (*lines, total))], *more, strict=True)
    cells = [[cell for part in line for cell in part] for line in parts]
    return PlacementTable.from_cells(cells, left_whole(arrays, shardings, reasons), width)


def _splits_parameters(shardings: PyTree) -> bool:
    """Return whether the mesh has an axis that parameters can be split over."""
    shapes = (sharding.mesh.shape for sharding in jax.tree.leaves(shardings))
    return any(
        size > 1 and axis_named(axis).state is not Use.NEVER
        for shape in shapes
        for axis, size in shape.items()
    )


def left_whole(
    arrays: PyTree, shardings: PyTree, reasons: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Return a line for each large array that each device holds whole, if the mesh could split it."""
    if not _splits_parameters(shardings):
        return []
    lines = rows(arrays, shardings, reasons)
    large = max(LARGE_BYTES, sum(row.device_bytes for row in lines) / 20)
    return [
        f"{printable(row.name, keep='')} {_shape(row)} ({human_bytes(row.device_bytes)}) "
        f"stays whole on every device{f': {row.reason}' if row.reason else ''}"
        for row in lines
        if row.is_whole and row.device_bytes >= large
    ]


def device_bytes(x: Any, sharding: NamedSharding) -> int:
    """Return the bytes of an array in the memory of one device.

    Example:
      >>> layout = mw.Layout(mw.make_mesh("data=8"))
      >>> mw.parallel._internal.device_bytes(jnp.ones((16, 4)), layout.batch_sharding)
      32
    """
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
    return replace(
        first,
        name=pattern.replace("#", f"{{{len(alike)} alike}}", 1),
        num_params=sum(row.num_params for row in alike),
        device_bytes=sum(row.device_bytes for row in alike),
    )


def _cells(row: Row) -> list[str]:
    return [
        printable(row.name, keep=""),
        "" if row.name == "total" else _shape(row),
        row.dtype,
        row.spec,
        f"{row.num_params:,}",
        human_bytes(row.device_bytes),
    ]


def _shape(row: Row) -> str:
    return " × ".join(map(str, row.shape)) or "scalar"
