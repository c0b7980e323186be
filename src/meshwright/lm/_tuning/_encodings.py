"""The encodings of weights in eight and in four bits: a code for each weight, and scales.

Int8: A weight is code / 127 times its scale, which is the largest absolute weight of the output.

NF4: Dettmers et al., QLoRA, 2023 (arXiv 2305.14314), section 3 and appendix E. The sixteen values are
quantiles of a normal distribution, scaled to [-1, 1], with an exact zero. A scale is the largest absolute
value of a block of 64 weights. The paper's second quantisation, of the scales, is not done here. Blocks go
along the last dimension, which is padded to whole blocks. Two codes share a byte, the first one in the low
four bits.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_LARGEST = 127
# The number of NF4's weights that share a scale.
BLOCK = 64
_NF4_VALUES = np.array(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
    np.float32,
)
_NF4_BOUNDS = (_NF4_VALUES[1:] + _NF4_VALUES[:-1]) / 2


class _Int8:
    def scales_of(self, weight: Any, xp: Any) -> Any:
        """Return the scales, [..., 1, out]."""
        return xp.abs(weight).max(-2, keepdims=True)

    def codes_of(self, weight: Any, scales: Any, xp: Any) -> Any:
        """Return the codes, int8[..., in, out]."""
        wide = scales.astype(np.float32)
        unit = weight.astype(np.float32) / xp.where(wide == 0, 1, wide)
        return xp.round(unit * _LARGEST).astype(np.int8)

    def decode(self, codes: jax.Array, scales: jax.Array, size: int) -> jax.Array:
        """Return the weights, float32[..., in, out]."""
        return codes.astype(jnp.float32) * (scales.astype(jnp.float32) / _LARGEST)


class _Nf4:
    def scales_of(self, weight: Any, xp: Any) -> Any:
        """Return the scales, [..., blocks], in the weight's dtype."""
        return xp.abs(_blocks(weight, xp)).max(-1)

    def codes_of(self, weight: Any, scales: Any, xp: Any) -> Any:
        """Return the codes, uint8[..., blocks * 32]."""
        wide = scales.astype(np.float32)[..., None]
        unit = _blocks(weight, xp).astype(np.float32) / xp.where(wide == 0, 1, wide)
        codes = xp.zeros(unit.shape, np.uint8)
        # This takes a third of the time of `searchsorted`.
        for bound in _NF4_BOUNDS:
            codes += (unit > bound).astype(np.uint8)
        pairs = codes.reshape(*scales.shape[:-1], scales.shape[-1] * BLOCK // 2, 2)
        return pairs[..., 0] | (pairs[..., 1] << np.uint8(4))

    def decode(self, codes: jax.Array, scales: jax.Array, size: int) -> jax.Array:
        """Return the weights, float32[..., size]."""
        values = jnp.stack([_value(codes), _value(codes >> 4)], -1)
        blocks = values.reshape(*scales.shape, BLOCK) * scales.astype(jnp.float32)[..., None]
        whole = blocks.reshape(*scales.shape[:-1], scales.shape[-1] * BLOCK)
        return whole if whole.shape[-1] == size else whole[..., :size]


def _blocks(weight: Any, xp: Any) -> Any:
    """Return the weights as blocks, [..., blocks, 64], the last of which is filled with zeros."""
    size = weight.shape[-1]
    padding = [(0, 0)] * (weight.ndim - 1) + [(0, -size % BLOCK)]
    return xp.pad(weight, padding).reshape(*weight.shape[:-1], -(-size // BLOCK), BLOCK)


def _value(codes: jax.Array) -> jax.Array:
    """Return the values of the low four bits. Fifteen choices, as TPUs look up single values slowly."""
    values: list[Any] = list(_NF4_VALUES)
    for bit in range(4):
        is_set = (codes >> bit) & 1 == 1
        values = [
            jnp.where(is_set, upper, lower) for lower, upper in zip(values[::2], values[1::2], strict=True)
        ]
    return values[0]


# The argument `xp` of an encoding is NumPy, for weights of files, or `jax.numpy`.
ENCODINGS: dict[str, _Int8 | _Nf4] = {"int8": _Int8(), "nf4": _Nf4()}
