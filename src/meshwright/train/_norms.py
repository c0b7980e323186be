"""How large single parameters and their gradients are, for reports."""

from collections.abc import Callable

import jax.numpy as jnp
import optax

from meshwright import tree
from meshwright.errors import UsageError
from meshwright.metrics import Mean
from meshwright.train._by_path import compiled
from meshwright.train._loss import Metrics
from meshwright.tree import PyTree


def norms_of(pattern: str | None) -> Callable[[PyTree, PyTree], Metrics]:
    """Return the function from parameters and gradients to the norms of those that `pattern` matches.

    They are called `param_norm/layers/0/q` and `grad_norm/layers/0/q`. None matches nothing.

    Raises:
      UsageError: the pattern is not a regular expression; or, when called, it matches none.
    """
    if pattern is None:
        return lambda params, grads: {}
    matches = compiled(pattern, "norms")

    def norms(params: PyTree, grads: PyTree) -> Metrics:
        names = [name for name in tree.leaf_names(params) if matches(f"params/{name}")]
        if not names:
            raise UsageError(f"norms={pattern!r} matches none of the parameters that are trained.")
        kinds = {"param_norm": tree.named_leaves(params), "grad_norm": tree.named_leaves(grads)}
        return {
            f"{kind}/{name}": Mean(optax.tree.norm(arrays[name]), jnp.ones((), jnp.float32))
            for kind, arrays in kinds.items()
            for name in names
        }

    return norms
