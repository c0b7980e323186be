"""Norms of parameters and of their gradients, of single ones and of all together."""

import functools
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from meshwright import tree
from meshwright.metrics import Mean
from meshwright.patterns import Table, judge
from meshwright.train._loss import Metrics
from meshwright.tree import PyTree

_NUM_SUMS = 64


def global_norm(arrays: PyTree) -> jax.Array:
    """Return the 2-norm of all elements of `arrays` together, in at least float32.

    XLA puts the sums over single arrays into one fusion, and compiles for a time that grows with the square
    of their number: 40 s for 2,000. So of many arrays those of one kind are squared and added up element by
    element, some at a time, and only what comes of that is summed. Arrays are of one kind if their names
    differ in numbers alone: those are split over devices in one way, so that nothing is exchanged.
    """
    kinds: dict[object, list[jax.Array]] = {}
    for name, x in tree.named_leaves(arrays).items():
        kinds.setdefault((re.sub(r"\d+", "", name), x.shape, x.dtype), []).append(x)
    at_a_time = -(-sum(map(len, kinds.values())) // _NUM_SUMS)
    lots = (kind[i : i + at_a_time] for kind in kinds.values() for i in range(0, len(kind), at_a_time))
    sums = (jnp.sum(functools.reduce(jax.lax.add, map(_squared, lot))) for lot in lots)
    return jnp.sqrt(sum(sums, jnp.zeros(())))


def _squared(x: jax.Array) -> jax.Array:
    # The functions of `lax` are traced in less time than those of `jax.numpy`, and arrays may be thousands.
    wide = jax.lax.convert_element_type(x, jnp.promote_types(x.dtype, jnp.float32))
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jax.lax.square(jax.lax.real(wide)) + jax.lax.square(jax.lax.imag(wide))
    return jax.lax.square(wide)


def norms_of(pattern: str | None) -> Callable[[PyTree, PyTree], Metrics]:
    """Return the function from parameters and gradients to the norms of those that `pattern` matches.

    They are called `param_norm/layers/0/q` and `grad_norm/layers/0/q`. None matches nothing.

    Raises:
      UsageError: the pattern is not a regular expression; or, when called, it matches none.
    """
    if pattern is None:
        return lambda params, grads: {}
    table = Table("norms", (pattern,))

    def norms(params: PyTree, grads: PyTree) -> Metrics:
        judge({table: tree.leaf_names({"params": params})})
        names = [name for name in tree.leaf_names(params) if table.first(f"params/{name}")]
        kinds = {"param_norm": tree.named_leaves(params), "grad_norm": tree.named_leaves(grads)}
        return {
            f"{kind}/{name}": Mean(optax.tree.norm(arrays[name]), jnp.ones((), jnp.float32))
            for kind, arrays in kinds.items()
            for name in names
        }

    return norms
