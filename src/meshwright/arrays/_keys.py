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


def type_name(leaf: Any) -> str:
    """Return what people call the dtype of an array; JAX calls that of keys `key<fry>`."""
    return f"key<{key_type(leaf)[0]}>" if is_key(leaf) else leaf.dtype.name


def keys_as_data(leaves: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the leaves with typed PRNG keys replaced by their data, and the implementation of each.

    The data is sharded as the keys are. Lazy arrays are data already; their implementations are told, too.
    """
    typed = {name: leaf for name, leaf in leaves.items() if is_key(leaf)}
    impls = {name: leaf.key_impl for name, leaf in leaves.items() if getattr(leaf, "key_impl", None)}
    data = {name: jax.random.key_data(leaf) for name, leaf in typed.items()}
    return {**leaves, **data}, impls | {name: key_type(leaf)[0] for name, leaf in typed.items()}
