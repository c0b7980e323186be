"""Attention of new positions to a cache of the keys and values before them, to generate token by token.

Dimensions: B batch, T new positions, S positions of the cache, L layers, N heads of queries, K of keys,
G = N / K, H one head.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from meshwright.errors import UsageError
from meshwright.nn._inputs import Bias
from meshwright.parallel._internal import shard_tensor_dim


class KeyValueCache(NamedTuple):
    """The keys and values of all layers and positions.

    Example:
      >>> cache = mw.nn.KeyValueCache.zeros(batch=2, layers=3, heads=4, length=8, head_size=16)
      >>> cache.keys.shape
      (2, 3, 4, 8, 16)
    """

    keys: jax.Array
    """The keys, [B, L, K, S, H]."""
    values: jax.Array
    """The values, [B, L, K, S, H]."""

    @classmethod
    def zeros(
        cls, *, batch: int, layers: int, heads: int, length: int, head_size: int, dtype: Any = jnp.float32
    ) -> "KeyValueCache":
        """Return an empty cache. On a mesh it is split by row, and by head over the axis `tensor`.

        Args:
          batch: The number of rows, B.
          layers: The number of layers, L.
          heads: The number of heads of keys, K.
          length: The number of positions, S.
          head_size: The size of a head, H.
          dtype: The dtype of keys and values.
        """
        empty = shard_tensor_dim(jnp.zeros((batch, layers, heads, length, head_size), dtype))
        return cls(empty, empty)


class CachedAttention:
    """Attention of a layer through a cache, called like `mw.nn.attention` with the new positions only.

    After the call, `cache` also has the new keys and values. A position sees the cache up to itself. Entries
    for later positions do not matter: rows may be padded at their end, and positions may be
    written again.

    Args:
      cache: The cache of all layers.
      layer: The index of the layer, int32[].
      starts_B: The position of the first token of each row, int32[B].
      length: The number of new positions, T.

    Example:
      >>> cache = mw.nn.KeyValueCache.zeros(batch=1, layers=1, heads=2, length=8, head_size=4)
      >>> x = jnp.ones((1, 3, 2, 4))
      >>> attend = mw.nn.CachedAttention(cache, jnp.int32(0), jnp.zeros(1, jnp.int32), 3)
      >>> attend(x, x, x).shape, attend.cache.keys[0, 0, 0, :, 0].tolist()
      ((1, 3, 2, 4), [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    """

    def __init__(self, cache: KeyValueCache, layer: jax.Array, starts_B: jax.Array, length: int):
        self.cache = cache
        """The cache, after the call with the new keys and values."""
        self.positions_BT = starts_B[:, None] + jnp.arange(length)
        """The position of each new token, int32[B, T]."""
        self._layer, self._starts_B = layer, starts_B

    def __call__(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        *,
        causal: bool = True,
        segments: Any = None,
        window: int | jax.Array | None = None,
        softcap: float | None = None,
        scale: float | None = None,
        bias: Bias | None = None,
    ) -> jax.Array:
        """Return the attention of the new positions, [B, T, N, H]; the arguments are those of
        `mw.nn.attention`.
        """
        if segments is not None or not causal:
            raise UsageError("attention through a cache is causal, and has no segments.")
        pairs = zip(self.cache, (k, v), strict=True)
        self.cache = KeyValueCache(*(_with_rows(x, new, self._layer, self._starts_B) for x, new in pairs))
        keys, values = (jax.lax.dynamic_index_in_dim(x, self._layer, 1, False) for x in self.cache)
        return _attend(q, keys, values, self.positions_BT, window, softcap, scale, bias)


def _with_rows(cache: jax.Array, new_BTKH: jax.Array, layer: jax.Array, starts_B: jax.Array) -> jax.Array:
    """Return [B, L, K, S, H] with new rows from each row's start on."""

    def insert(cache_LKSH: jax.Array, new_TKH: jax.Array, start: jax.Array) -> jax.Array:
        new = new_TKH.swapaxes(0, 1)[None].astype(cache_LKSH.dtype)
        return jax.lax.dynamic_update_slice(cache_LKSH, new, (layer, 0, start, 0))

    return jax.vmap(insert)(cache, new_BTKH, starts_B)


def _attend(
    q: jax.Array,
    keys_BKSH: jax.Array,
    values_BKSH: jax.Array,
    positions_BT: jax.Array,
    window: int | jax.Array | None,
    softcap: float | None,
    scale: float | None,
    bias: Bias | None,
) -> jax.Array:
    (B, T, N, H), K = q.shape, keys_BKSH.shape[1]
    q_BTKGH = q.reshape(B, T, K, N // K, H) * (H**-0.5 if scale is None else scale)
    wide = jnp.promote_types(q.dtype, jnp.float32)
    scores = jnp.einsum("btkgh,bksh->bkgts", q_BTKGH, keys_BKSH, preferred_element_type=wide)
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    s = jnp.arange(keys_BKSH.shape[2])
    if bias is not None:
        function, operand = bias
        scores += jax.vmap(lambda t: function(operand, t, s))(positions_BT).reshape(scores.shape)
    distance_BTS = positions_BT[:, :, None] - s
    sees = distance_BTS >= 0
    if window is not None:
        sees &= distance_BTS < window
    scores = jnp.where(sees[:, None, None], scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(values_BKSH.dtype)
    return jnp.einsum("bkgts,bksh->btkgh", weights, values_BKSH).reshape(B, T, N, H)
