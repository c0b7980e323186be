"""Norms of parameters and of gradients, for single arrays and for all arrays together."""

import functools
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from meshwright.base._internal import PyTree, Table, judge, tree
from meshwright.observe._internal import Mean
from meshwright.training._loss import Metrics

_NUM_SUMS = 64


def global_norm(arrays: PyTree) -> jax.Array:
    """Return the 2-norm of all elements of `arrays` together, in at least float32.

    XLA fuses the sums over single arrays, and the compile time grows with the square of their number: 40 s
    for 2,000 arrays. Arrays of the same kind are therefore squared and added element by element, in groups,
    and only the results are summed. Arrays are of the same kind if their names differ only in numbers. They
    have the same sharding, so the addition needs no communication.
    """
    kinds: dict[object, list[jax.Array]] = {}
    for name, x in tree.named_leaves(arrays).items():
        kinds.setdefault((re.sub(r"\d+", "", name), x.shape, x.dtype), []).append(x)
    at_a_time = -(-sum(map(len, kinds.values())) // _NUM_SUMS)
    lots = (kind[i : i + at_a_time] for kind in kinds.values() for i in range(0, len(kind), at_a_time))
    sums = (jnp.sum(functools.reduce(jax.lax.add, map(_squared, lot))) for lot in lots)
    return jnp.sqrt(sum(sums, jnp.zeros(())))


def _squared(x: jax.Array) -> jax.Array:
    # `lax` functions are traced faster than those of `jax.numpy`, and there may be thousands of arrays.
    wide = jax.lax.convert_element_type(x, jnp.promote_types(x.dtype, jnp.float32))
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jax.lax.square(jax.lax.real(wide)) + jax.lax.square(jax.lax.imag(wide))
    return jax.lax.square(wide)


def norms_of(pattern: str | None) -> Callable[[PyTree, PyTree], Metrics]:
    """Return a function that takes parameters and gradients and returns the norms that `pattern` selects.

    The norms are called `param_norm/layers/0/q` and `grad_norm/layers/0/q`. None selects no norms.
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
