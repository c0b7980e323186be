"""Computing in a narrower dtype than the parameters are kept in."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from meshwright.errors import UsageError
from meshwright.tree import PyTree


def floating(dtype: DTypeLike | None) -> jnp.dtype | None:
    """Return `dtype`, which may be a text such as "bfloat16", as a dtype.

    Raises:
      UsageError: it is no dtype, or none of floating numbers.
    """
    if dtype is None:
        return None
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating):
        raise UsageError(
            f"compute_dtype={dtype!r} is no floating dtype. Use 'bfloat16', 'float16', 'float32', or None to "
            "compute in the parameters' own."
        )
    return found


def narrowed(params: PyTree, dtype: jnp.dtype | None) -> PyTree:
    """Return `params` with floating arrays that are wider than `dtype` cast to it, and the rest as it is."""
    if dtype is None:
        return params

    def one(x: jax.Array) -> jax.Array:
        is_wider = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize > dtype.itemsize
        return x.astype(dtype) if is_wider else x

    return jax.tree.map(one, params)
