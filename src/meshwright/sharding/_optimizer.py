"""Where optimizer state lives: beside the parameter that it is about.

Optimizers keep trees shaped like the parameters (Adam's moments), trees with a dimension less
(Adafactor's factors), and scalars. A state leaf is recognised by the end of its name, which is a
parameter's name, and then by its shape; optax's own tree structure is never relied upon.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright import tree
from meshwright.sharding._layout import canonical

PyTree = Any


def beside_params(state: PyTree, params: PyTree, shardings: PyTree) -> PyTree:
    """Return the shardings of optimizer `state` (arrays or structs) for parameters placed as `shardings`.

    A leaf of a parameter's name and shape is placed as the parameter; with one dimension less, as
    what is left of its spec; anything else is replicated.
    """
    named = tree.named_leaves(params)
    placed = tree.named_leaves(shardings)
    specs = {name: (x.shape, placed[name].spec) for name, x in named.items()}
    mesh = next(iter(placed.values())).mesh

    def one(name: str, x: Any) -> NamedSharding:
        return NamedSharding(mesh, _spec_like(_parameter_of(name, specs), x, specs))

    return tree.map_named(one, state)


def _parameter_of(name: str, specs: Mapping[str, Any]) -> str | None:
    """Return the longest end of `name` that is a parameter's name (`""` where they are one array)."""
    parts = name.split("/")
    ends = ("/".join(parts[start:]) for start in range(len(parts) + 1))
    return next((end for end in ends if end in specs), None)


def _spec_like(
    parameter: str | None, x: jax.ShapeDtypeStruct, specs: Mapping[str, tuple[tuple[int, ...], P]]
) -> P:
    if parameter is None:
        return P()
    shape, spec = specs[parameter]
    if x.shape == shape:
        return spec
    entries = list(spec) + [None] * (len(shape) - len(spec))
    for dropped in range(len(shape)):
        if x.shape == shape[:dropped] + shape[dropped + 1 :]:
            return canonical(P(*entries[:dropped], *entries[dropped + 1 :]))
    return P()
