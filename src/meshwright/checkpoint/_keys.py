"""Typed PRNG keys: saved as their data, uint32, with the name of their implementation beside it."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp


def is_key(leaf: Any) -> bool:
    """Say whether `leaf` holds typed PRNG keys (or stands for such)."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def key_type(leaf: Any) -> tuple[str, tuple[int, ...]]:
    """Return the implementation of keys, which may be abstract, and the shape of their data."""
    impls: list[str] = []

    def data(keys: jax.Array) -> jax.Array:
        impls.append(str(jax.random.key_impl(keys)))  # asks for an array, and while tracing there is one
        return jax.random.key_data(keys)

    shape = jax.eval_shape(data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)).shape
    return impls[0], shape


def key_impls(leaves: Mapping[str, Any]) -> dict[str, str]:
    """Return the implementation of each leaf that holds typed PRNG keys, or (lazily) the data of such."""
    known = {name: getattr(leaf, "key_impl", None) for name, leaf in leaves.items()}
    typed = {name: key_type(leaf)[0] for name, leaf in leaves.items() if is_key(leaf)}
    return {name: impl for name, impl in known.items() if impl} | typed


def without_keys(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves with typed PRNG keys replaced by their data, sharded as they are."""
    return {name: jax.random.key_data(leaf) if is_key(leaf) else leaf for name, leaf in leaves.items()}
