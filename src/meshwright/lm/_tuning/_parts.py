"""The adapter of one weight: its arrays when it is new, beside the weight, and added to it."""

import zlib
from collections.abc import Mapping
from typing import Any, overload

import jax
import jax.numpy as jnp

from meshwright.base._internal import tree
from meshwright.lm._tuning._adapted import Adapted
from meshwright.lm._tuning._matrices import adapted_matrices, as_matrices, as_weight
from meshwright.lm._tuning._quantised import computed

Part = Mapping[str, Any]
"""The arrays of the adapter of one weight: `lora_a`, `lora_b` and, for DoRA, `magnitude`."""


def parts_of(adapter: tree.PyTree) -> dict[str, dict[str, Any]]:
    """Return the arrays of an adapter by the name of the weight and their own, `lora_a`."""
    parts: dict[str, dict[str, Any]] = {}
    for name, x in tree.named_leaves(adapter).items():
        weight, _, part = name.rpartition("/")
        parts.setdefault(weight, {})[part] = x
    return parts


@overload
def named_key(key: jax.Array, name: str) -> jax.Array: ...
@overload
def named_key(key: None, name: str) -> None: ...
def named_key(key: jax.Array | None, name: str) -> jax.Array | None:
    """Return the key of a name, which does not depend on the other names; None without a key."""
    return None if key is None else jax.random.fold_in(key, zlib.crc32(name.encode()))


def new_part(sizes: tuple[tuple[int, ...], int, int], rank: int, key: jax.Array) -> dict[str, jax.Array]:
    """Return a new adapter. `lora_a` is uniform in ±1 / sqrt(in), as PEFT initialises it."""
    stack, inputs, outputs = sizes
    bound = inputs**-0.5
    return {
        "lora_a": jax.random.uniform(key, (*stack, inputs, rank), jnp.float32, -bound, bound),
        "lora_b": jnp.zeros((*stack, rank, outputs), jnp.float32),
    }


def factored(weight: Any, part: Part, key: jax.Array | None, scale: float, dropout: float) -> Adapted:
    """Return a weight with its adapter beside it, for `x @ weight`, with a dropout key for each matrix."""
    stack = weight.shape[:-2]
    keys = jax.random.split(key, stack) if key is not None and stack else key
    return Adapted(weight, part["lora_a"], part["lora_b"], part.get("magnitude"), keys, scale, dropout)


def added(weight: Any, letters: str, part: Part, scale: float) -> jax.Array:
    """Return a weight with its adapter added, in the dtype of the weight."""
    matrices = as_matrices(computed(weight), letters)
    new = adapted_matrices(matrices, part["lora_a"], part["lora_b"], part.get("magnitude"), scale)
    return as_weight(new, weight.shape, letters).astype(weight.dtype)
