"""Where optimizer state lives: beside the parameter that it is about.

Optimizers keep trees shaped like the parameters (Adam's moments), trees with a dimension less
(Adafactor's factors), and scalars. A state leaf is recognised by the end of its name, which is a
parameter's name, and then by its shape; optax's own tree structure is never relied upon.
"""

from collections.abc import Container
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright import tree
from meshwright.sharding._layout import canonical
from meshwright.tree import PyTree


def beside_params(state: PyTree, params: PyTree, shardings: PyTree) -> PyTree:
    """Return the shardings of optimizer `state` (arrays or structs) for parameters placed as `shardings`.

    A leaf of a parameter's name and shape is placed as the parameter; with a dimension more in front,
    as each of those stacked; with one less, as what is left of its spec; anything else is replicated.
    """
    named = tree.named_leaves(params)
    placed = tree.named_leaves(shardings)
    specs = {name: (x.shape, placed[name].spec) for name, x in named.items()}
    mesh = next(iter(placed.values())).mesh

    def one(name: str, x: Any) -> NamedSharding:
        parameter = parameter_of(name, specs)
        return NamedSharding(mesh, P() if parameter is None else _spec_like(name, x, *specs[parameter]))

    return tree.map_named(one, state)


def parameter_of(name: str, parameters: Container[str]) -> str | None:
    """Return the longest end of `name` that is a parameter's name (`""` where they are one array)."""
    parts = name.split("/")
    ends = ("/".join(parts[start:]) for start in range(len(parts) + 1))
    return next((end for end in ends if end in parameters), None)


def _spec_like(name: str, x: jax.ShapeDtypeStruct, shape: tuple[int, ...], spec: P) -> P:
    """Return the spec of the state leaf `name` for a parameter of `shape` placed as `spec`."""
    if x.shape == shape:
        return spec
    if x.shape[1:] == shape:  # several of them stacked, as L-BFGS keeps
        return canonical(P(None, *spec))
    fit = [d for d in range(len(shape)) if x.shape == shape[:d] + shape[d + 1 :]]
    if not fit:
        return P()
    # Of a square, optax's factor `v_row` has lost the columns and `v_col` the rows.
    dropped = fit[-1] if "v_row" in name.split("/") else fit[0]
    entries = list(spec) + [None] * (len(shape) - len(spec))
    return canonical(P(*entries[:dropped], *entries[dropped + 1 :]))
