"""Attention with all scores at once: for short rows, and to compare other forms with."""

import jax
import jax.numpy as jnp

from meshwright.nn._inputs import AttentionInputs, Bias, visible


def dense(given: AttentionInputs) -> jax.Array:
    """Return what is attended to, [B, T, N, H]. Without a cap of the scores it is that of `jax.nn`."""
    if given.softcap is not None:
        return plain(given)[0]
    mask = _mask(given)
    is_causal_alone = given.causal and given.window is None and given.segments is None
    out = jax.nn.dot_product_attention(
        given.q,
        given.k,
        given.v,
        _bias(given),
        None if is_causal_alone or mask is None else mask[:, None],
        is_causal=is_causal_alone,
        scale=given.scale,
    )
    return _none_where_empty(given, mask, out)


def plain(given: AttentionInputs) -> tuple[jax.Array, jax.Array]:
    """Return what is attended to, [B, T, N, H], and the logarithms of the sums, [B, N, T], as defined."""
    B, T, N, H = given.q.shape
    K = given.k.shape[2]
    q_BTKGH = given.q.reshape(B, T, K, N // K, H) * given.scale
    scores = jnp.einsum("btkgh,bskh->bkgts", q_BTKGH, given.k, preferred_element_type=given.scores_dtype)
    if given.softcap is not None:
        scores = given.softcap * jnp.tanh(scores / given.softcap)
    if (bias := _bias(given)) is not None:
        scores += jnp.broadcast_to(bias, (bias.shape[0], N, *bias.shape[2:])).reshape(-1, *scores.shape[1:])
    mask = _mask(given)
    sees = jnp.ones((1, 1, 1, T, 1), bool) if mask is None else mask.any(-1, keepdims=True)[:, None, None]
    if mask is not None:  # a query that sees nothing is given all keys first, as 0 / 0 has no gradient
        scores = jnp.where(mask[:, None, None] | ~sees, scores, -jnp.inf)
    lse = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
    weights = jnp.where(sees, jnp.exp(scores - lse), 0).astype(given.v.dtype)
    out = jnp.einsum("bkgts,bskh->btkgh", weights, given.v).reshape(given.q.shape)
    return out, jnp.where(sees, lse, -jnp.inf).reshape(B, N, T)


def _mask(given: AttentionInputs) -> jax.Array | None:
    t, s = (jnp.arange(x.shape[1]) for x in (given.q, given.k))
    return visible(given.causal, given.window, given.segments, t, s)


def _bias(given: AttentionInputs) -> jax.Array | None:
    if not isinstance(given.bias, Bias):
        return given.bias
    t, s = (jnp.arange(x.shape[1]) for x in (given.q, given.k))
    return given.bias.function(given.bias.operand, t, s)[None]


def _none_where_empty(given: AttentionInputs, mask: jax.Array | None, out: jax.Array) -> jax.Array:
    """Return 0 for queries that see no key, of which a softmax makes the mean of all values."""
    if mask is None or not given.leaves_rows_empty:
        return out
    return jnp.where(mask.any(-1)[:, :, None, None], out, jnp.zeros((), out.dtype))
