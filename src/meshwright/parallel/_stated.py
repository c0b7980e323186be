"""The rule for a model that states how its parameters are split, which explicit axes let it do."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.base._internal import PyTree, tree


@dataclass(frozen=True)
class Stated:
    """A rule that splits parameters as the function that makes them does."""

    specs: Mapping[str, P]
    """The split of each parameter, by its name without `params/`."""

    def __call__(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> P | None:
        """Return the split of one array, or None if it is not a parameter."""
        return self.specs.get(name.removeprefix("params/"))

    def why(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> str:
        """Return the reason for the split of one array."""
        return "as the model states"


def stated(params: PyTree) -> Stated | None:
    """Return the rule that a model states for its parameters; None if it splits none of them.

    On a mesh with explicit axes the type of an array says how it is split.
    """
    leaves = tree.named_leaves(params)
    shardings = {name: getattr(x, "sharding", None) for name, x in leaves.items()}
    specs = {name: s.spec for name, s in shardings.items() if isinstance(s, NamedSharding)}
    return Stated(specs) if any(map(any, specs.values())) else None
