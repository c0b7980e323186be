"""Typed PRNG keys, which are saved as their uint32 data and the name of their implementation."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp


def is_key(leaf: Any) -> bool:
    """Return whether `leaf` is an array, or a struct, of typed PRNG keys."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def key_type(leaf: Any) -> tuple[str, tuple[int, ...]]:
    """Return the implementation of typed keys, which may be a struct, and the shape of their data."""
    impls: list[str] = []

    def data(keys: jax.Array) -> jax.Array:
        impls.append(str(jax.random.key_impl(keys)))  # needs an array, which a tracer is and a struct is not
        return jax.random.key_data(keys)

    shape = jax.eval_shape(data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)).shape
    return impls[0], shape


def type_name(leaf: Any) -> str:
    """Return the name of an array's dtype for messages; typed keys have `key<threefry2x32>`."""
    return f"key<{key_type(leaf)[0]}>" if is_key(leaf) else leaf.dtype.name


def keys_as_data(leaves: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the leaves with typed PRNG keys replaced by their data, and the implementations of the keys.

    Returns:
      The leaves, and by name the implementation of those that are keys.
    """
    typed = {name: leaf for name, leaf in leaves.items() if is_key(leaf)}
    impls = {name: leaf.key_impl for name, leaf in leaves.items() if getattr(leaf, "key_impl", None)}
    data = {name: jax.random.key_data(leaf) for name, leaf in typed.items()}
    return {**leaves, **data}, impls | {name: key_type(leaf)[0] for name, leaf in typed.items()}


def saved_structs(leaves: Mapping[str, Any], dtypes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shapes that leaves have when they are saved, as structs with shardings; numbers stay."""

    def struct(name: str, leaf: Any) -> Any:
        if is_key(leaf):
            return jax.ShapeDtypeStruct(key_type(leaf)[1], "uint32")
        if not hasattr(leaf, "dtype"):
            return leaf
        sharding = getattr(leaf, "sharding", None)
        return jax.ShapeDtypeStruct(leaf.shape, dtypes.get(name, leaf.dtype), sharding=sharding)

    return {name: struct(name, leaf) for name, leaf in leaves.items()}
