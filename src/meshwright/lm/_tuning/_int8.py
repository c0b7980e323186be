"""Weights in eight bits: a code for each weight, and a scale for each output.

A weight is code / 127 times its scale, which is the largest absolute weight of the output.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_LARGEST = 127


def scales_of(weight: Any, xp: Any) -> Any:
    """Return the scales, [..., 1, out], in the weight's dtype."""
    return xp.abs(weight).max(-2, keepdims=True)


def codes_of(weight: Any, scales: Any, xp: Any) -> Any:
    """Return the codes, int8[..., in, out]."""
    wide = scales.astype(np.float32)
    unit = weight.astype(np.float32) / xp.where(wide == 0, 1, wide)
    return xp.round(unit * _LARGEST).astype(np.int8)


def decode(codes: jax.Array, scales: jax.Array, size: int) -> jax.Array:
    """Return the weights, float32[..., in, out]."""
    return codes.astype(jnp.float32) * (scales.astype(jnp.float32) / _LARGEST)
