"""Sharding by logical axes: the model names its dimensions, and a table says what splits each name.

Flax keeps such names with the parameters, and T5X and MaxText made these usual.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from meshwright.errors import LayoutError, UsageError, listed, nearest
from meshwright.sharding._layout import AXES, axes_of
from meshwright.sharding._rules import AxisEntry

Table = Mapping[str, AxisEntry]

LOGICAL_AXES: Table = MappingProxyType(
    {
        **{axis: axis for axis in AXES},
        "embed": "fsdp",
        **dict.fromkeys(("mlp", "heads", "q_heads", "kv_heads", "joined_kv", "qkv", "vocab"), "tensor"),
        **dict.fromkeys(("exp", "experts"), "expert"),
        "model": "tensor",
        **dict.fromkeys(("kv", "head_dim", "norm", "layers", "stack", "mlp_activations"), None),
        **dict.fromkeys(("relpos_buckets", "abspos_buckets", "length", "conv", "unmodeled"), None),
    }
)
"""What splits each logical axis, of those that T5X and MaxText name; mesh axes may be named themselves."""


@dataclass(frozen=True, eq=False)
class Logical:
    """The rule that `logical` makes."""

    axes: Mapping[str, Sequence[str | None]]
    table: Table

    def __call__(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> P | None:
        named = self._named(name)
        if not named:
            return None
        if len(named) != x.ndim:
            raise LayoutError(f"{name} has shape {x.shape}, but its logical axes are {tuple(named)}.")
        used: set[str] = set()
        entries = []
        for size, axis in zip(x.shape, named, strict=True):
            entries.append(self._fitting(size, axis, mesh, used))
            used.update(entries[-1])
        return P(*entries)

    def why(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> str:
        """Return the logical axes of one array, as text."""
        named = self._named(name)
        return " × ".join(axis or "-" for axis in named) if named else ""

    def check(self, names: Sequence[str]) -> None:
        """Check that there are all parameters whose dimensions are named, among leaves of these names.

        Raises:
          UsageError: listing those that there are not.
        """
        known = {*names, *(name.removeprefix("params/") for name in names)}
        missing = [
            name + (f" (did you mean {close}?)" if (close := nearest(name, known)) else "")
            for name, named in self.axes.items()
            if any(named) and name not in known
        ]
        if missing:
            raise UsageError(f"logical: there are axes for what is no parameter: {listed(missing)}.")

    def _named(self, name: str) -> Sequence[str | None] | None:
        """Return the axes of a parameter, if any is named. In a `TrainState` it is called `params/…`."""
        named = self.axes.get(name, self.axes.get(name.removeprefix("params/")))
        return named if named is not None and any(named) else None

    def _fitting(self, size: int, axis: str | None, mesh: Mesh, used: set[str]) -> tuple[str, ...]:
        """Return the mesh axes for one dimension: those that there are, still free, and that divide."""
        fitting: tuple[str, ...] = ()
        for mesh_axis in axes_of(self.table[axis]) if axis else ():
            ways = mesh.shape.get(mesh_axis, 1)
            if mesh_axis in mesh.shape and mesh_axis not in used and size % ways == 0:
                fitting, size = (*fitting, mesh_axis), size // ways
        return fitting


def logical(axes: Mapping[str, Sequence[str | None]], table: Table = LOGICAL_AXES) -> Logical:
    """Return a rule that splits parameters as the model's own names for their dimensions say.

    One table serves all meshes: mesh axes that are not there, that split an earlier dimension already,
    or that do not divide are left out. Of a Flax model, `mw.functional(model).axes` are what it says.

    Args:
      axes: by the parameter's name, a logical axis or None for each dimension.
      table: the mesh axis or axes of each logical axis; None leaves it whole.

    Raises:
      LayoutError: listing all logical axes that the table lacks; or, when asked, an array of other rank.
    """
    unknown = [
        f"{axis!r} of {name}" + (f" (did you mean {close!r}?)" if (close := nearest(axis, table)) else "")
        for name, named in axes.items()
        for axis in named
        if axis is not None and axis not in table
    ]
    if unknown:
        raise LayoutError(
            f"the table of logical axes lacks {', '.join(unknown)}.\n"
            "  Add each to the table: logical(axes, {**LOGICAL_AXES, name: mesh axis or None})."
        )
    return Logical(axes, table)
