"""Rules for models that state their sharding: by logical axes, or by explicit mesh axes.

With logical axes the model names its dimensions, and a table gives the mesh axes of each name.
Flax keeps such names with the parameters; T5X and MaxText made these names usual.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.base._internal import PyTree, tree
from meshwright.errors import LayoutError, UsageError, listed, nearest
from meshwright.parallel._axes import AXES, EXPERT, FSDP, TENSOR
from meshwright.parallel._layout import axes_of
from meshwright.parallel._rules import AxisEntry

Table = Mapping[str, AxisEntry]

LOGICAL_AXES: Table = MappingProxyType(
    {
        **{axis: axis for axis in AXES},
        "embed": FSDP,
        **dict.fromkeys(("mlp", "heads", "q_heads", "kv_heads", "joined_kv", "qkv", "vocab"), TENSOR),
        **dict.fromkeys(("exp", "experts"), EXPERT),
        "model": TENSOR,
        **dict.fromkeys(("kv", "head_dim", "norm", "layers", "stack", "mlp_activations"), None),
        **dict.fromkeys(("relpos_buckets", "abspos_buckets", "length", "conv", "unmodeled"), None),
    }
)
"""The mesh axis or axes of each logical axis of T5X and MaxText.

Mesh axes may also be used as logical axes.
"""


@dataclass(frozen=True, eq=False)
class Logical:
    """The rule that `logical` makes."""

    axes: Mapping[str, Sequence[str | None]]
    """Logical axes of each parameter, by its name."""
    table: Table
    """Mesh axis or axes of each logical axis."""

    def __call__(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> P | None:
        named = self._named(name)
        if not named:
            return None
        if len(named) != x.ndim:
            raise LayoutError(
                f"{name} has shape {x.shape}, but its logical axes are {tuple(named)}.\n"
                "  Give one logical axis, or None, for each dimension."
            )
        used: set[str] = set()
        entries = []
        for size, axis in zip(x.shape, named, strict=True):
            entries.append(self._fitting(size, axis, mesh, used))
            used.update(entries[-1])
        return P(*entries)

    def why(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> str:
        """Return the logical axes of one array as text."""
        named = self._named(name)
        return " × ".join(axis or "-" for axis in named) if named else ""

    def check(self, names: Sequence[str]) -> None:
        """Check that every parameter with logical axes exists."""
        all_names = {*names, *(name.removeprefix("params/") for name in names)}
        missing = [
            name + (f" (did you mean {close}?)" if (close := nearest(name, all_names)) else "")
            for name, named in self.axes.items()
            if any(named) and name not in all_names
        ]
        if missing:
            raise UsageError(f"logical: axes are given for unknown parameters: {listed(missing)}.")

    def _named(self, name: str) -> Sequence[str | None] | None:
        """Return the logical axes of a parameter, if it has any.

        In a `TrainState` its name begins with `params/`.
        """
        named = self.axes.get(name, self.axes.get(name.removeprefix("params/")))
        return named if named is not None and any(named) else None

    def _fitting(self, size: int, axis: str | None, mesh: Mesh, used: set[str]) -> tuple[str, ...]:
        """Return the mesh axes for one dimension: those that exist, are still free, and divide it."""
        fitting: tuple[str, ...] = ()
        for mesh_axis in axes_of(self.table[axis]) if axis else ():
            ways = mesh.shape.get(mesh_axis, 1)
            if mesh_axis in mesh.shape and mesh_axis not in used and size % ways == 0:
                fitting, size = (*fitting, mesh_axis), size // ways
        return fitting


def logical(axes: Mapping[str, Sequence[str | None]], table: Table = LOGICAL_AXES) -> Logical:
    """Return a rule that splits parameters by the model's own names for their dimensions.

    One table serves all meshes: mesh axes that are missing, that split an earlier dimension, or that do not
    divide are left out. The axes of a Flax model are `mw.functional(model).axes`.

    Args:
      axes: For each parameter's name, a logical axis or None for each dimension.
      table: The mesh axis or axes of each logical axis; None leaves it whole.

    Raises:
      LayoutError: The table lacks some logical axes, all of which are listed; or, when the rule is called, an
        array has another number of dimensions than its axes.

    Example:
      >>> rule = mw.parallel.logical({"up": ("embed", "mlp")})
      >>> rule("up", jax.ShapeDtypeStruct((256, 1024), jnp.float32), mw.make_mesh("data=4,tensor=2"))
      P(None, 'tensor')
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


@dataclass(frozen=True)
class Explicit:
    """A rule that splits parameters as the function that makes them does."""

    specs: Mapping[str, P]
    """The split of each parameter, by its name without `params/`."""

    def __call__(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> P | None:
        """Return the split of one array, or None if it is not a parameter."""
        return self.specs.get(name.removeprefix("params/"))

    def why(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> str:
        """Return the reason for the split of one array."""
        return "as the model states"


def explicit(params: PyTree) -> Explicit | None:
    """Return the rule that a model states for its parameters; None if it splits none of them.

    On a mesh with explicit axes the type of an array says how it is split.
    """
    leaves = tree.named_leaves(params)
    shardings = {name: getattr(x, "sharding", None) for name, x in leaves.items()}
    specs = {name: s.spec for name, s in shardings.items() if isinstance(s, NamedSharding)}
    return Explicit(specs) if any(map(any, specs.values())) else None
