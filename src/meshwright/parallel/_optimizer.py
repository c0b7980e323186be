"""Placement of optimizer state: each array is placed like the parameter that it belongs to.

Optimizers keep trees shaped like the parameters (Adam's moments), trees with one dimension less
(Adafactor's factors), and scalars. The parameter of a state leaf is found by the end of the leaf's name,
which is the parameter's name, and then by its shape. The code does not rely on optax's tree structure.
"""

from collections.abc import Container
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.base._internal import PyTree, tree
from meshwright.parallel._layout import canonical


def beside_params(state: PyTree, params: PyTree, shardings: PyTree) -> PyTree:
    """Return the shardings of optimizer state for given shardings of the parameters.

    A leaf with a parameter's name and shape is placed like that parameter. With one more leading dimension it
    is placed as a stack of them; with one dimension less, by the remaining entries of the spec. All other
    leaves are replicated.

    Example:
      >>> params = {"w": jnp.ones((512, 256))}
      >>> shardings = mw.Layout(mw.make_mesh("fsdp=8")).shardings(params)
      >>> state = optax.adam(1e-3).init(params)
      >>> mw.parallel._internal.beside_params(state, params, shardings)[0].mu["w"].spec
      P('fsdp',)
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
    """Return the longest end of `name` that is a parameter's name; None if there is none.

    Example:
      >>> mw.parallel._internal.parameter_of("0/mu/layer/w", {"layer/w"})
      'layer/w'
    """
    parts = name.split("/")
    ends = ("/".join(parts[start:]) for start in range(len(parts) + 1))
    return next((end for end in ends if end in parameters), None)


def _spec_like(name: str, x: jax.ShapeDtypeStruct, shape: tuple[int, ...], spec: P) -> P:
    """Return the spec of the state leaf `name` for a parameter with this shape and spec."""
    if x.shape == shape:
        return spec
    if x.shape[1:] == shape:  # a stack of several, as in L-BFGS
        return canonical(P(None, *spec))
    fit = [d for d in range(len(shape)) if x.shape == shape[:d] + shape[d + 1 :]]
    if not fit:
        return P()
    # For a square parameter, optax's factor `v_row` lacks the columns and `v_col` the rows.
    dropped = fit[-1] if "v_row" in name.split("/") else fit[0]
    entries = list(spec) + [None] * (len(shape) - len(spec))
    return canonical(P(*entries[:dropped], *entries[dropped + 1 :]))
