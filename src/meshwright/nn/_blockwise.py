"""Attention block by block, in XLA's own operations, on any hardware; with its own gradient.

For each pair of a block of queries and one of keys that it may see, in turn, the scores are computed, and
the sums for the queries so far are scaled to the largest score so far (an online softmax: Milakov and
Gimelshein, arXiv:1805.02867). The gradient computes the scores again, from the logarithms of the sums (Dao,
arXiv:2205.14135, algorithm 4). The pairs are known when the program is traced.

Shapes: B rows, T queries, S keys, K heads of keys, each for G heads of queries, H features; t and s are
those of a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from meshwright.base._internal import PyTree
from meshwright.nn._inputs import AttentionInputs, Bias, visible

# Plans know attention by this name: hardware may run it as one kernel.
_SCOPE = "fused_attention"

BLOCK = 512
"""Most queries, and keys, of a block."""
_MULTIPLE = 16


@dataclass(frozen=True)
class _Static:
    """The settings that a program is traced for, besides shapes and dtypes."""

    causal: bool
    window: int | None
    softcap: float | None
    scale: float
    length: int
    """Number of keys before padding to a multiple of the block."""
    bias: Any
    """The function of a `Bias`."""
    block: tuple[int, int]
    """Queries and keys of a block."""
    dtype: Any
    """The dtype of scores and sums."""
    offset: int | None = 0
    """The position of the first query minus that of the first key; None if only the devices know it."""


@dataclass(frozen=True)
class _Block:
    """The place of a pair of blocks."""

    i: jax.Array
    j: jax.Array
    t: jax.Array
    """int[t], the positions of its queries."""
    s: jax.Array
    """int[s], the positions of its keys."""
    is_key: jax.Array
    """bool[s], false for the padding of the last block."""


class Starts(NamedTuple):
    """The positions of the first query and the first key of a part of longer rows."""

    t: jax.Array
    s: jax.Array
    offset: int | None
    """`t - s` if it is known when the program is traced: blocks that the mask hides are then left out."""


@jax.named_scope(_SCOPE)
def blockwise(inputs: AttentionInputs, block: int = BLOCK) -> tuple[jax.Array, jax.Array]:
    """Return the attention, [B, T, N, H], and the logarithms of the sums, [B, N, T]."""
    out, lse = part(inputs, None, block)
    return out.astype(inputs.v.dtype), lse


@jax.named_scope(_SCOPE)
def part(inputs: AttentionInputs, starts: Starts | None, block: int = BLOCK) -> tuple[jax.Array, jax.Array]:
    """Return the result of `blockwise` in the dtype of sums, for queries and keys that begin at `starts`."""
    B, T, N, H = inputs.q.shape
    static, arrays = _in_blocks(inputs, starts, block)
    out, lse = _attend(static, *arrays)
    out = _rows(out, T).reshape(B, T, N, H)
    return out, jnp.moveaxis(_rows(lse, T), 1, -1).reshape(B, N, T)


@jax.named_scope(_SCOPE)
def part_gradients(
    inputs: AttentionInputs, starts: Starts, results: Any, changes: Any, block: int = BLOCK
) -> dict[str, PyTree]:
    """Return the part of the gradients that queries and keys of longer rows have, in the dtype of sums.

    Returns:
      The gradients of the queries `q`, the keys `k`, the values `v` and of the bias or its operand, `bias`.
    """
    (B, T, N, H), (S, K) = inputs.q.shape, inputs.k.shape[1:3]
    static, arrays = _in_blocks(inputs, starts, block)

    def features(x: jax.Array) -> jax.Array:
        return _blocks(x.reshape(B, T, K, N // K, H).astype(static.dtype), static.block[0])

    def sums(x: jax.Array) -> jax.Array:
        return _blocks(jnp.moveaxis(x.reshape(B, K, N // K, T), -1, 1), static.block[0])

    (out, lse), (d_out, d_lse) = results, changes
    gradients = _gradients(static, arrays, (features(out), sums(lse)), (features(d_out), sums(d_lse)))
    bias = gradients["operand"]
    if inputs.bias is not None and not isinstance(inputs.bias, Bias):
        bias = bias[..., :T, :S].reshape(inputs.bias.shape)
    k, v = (_rows(gradients[name], S) for name in "kv")
    return {"q": _rows(gradients["q"], T).reshape(B, T, N, H), "k": k, "v": v, "bias": bias}


def _in_blocks(inputs: AttentionInputs, starts: Starts | None, block: int) -> tuple[_Static, tuple[Any, ...]]:
    B, T, N, H = inputs.q.shape
    S, K = inputs.k.shape[1:3]
    sizes = _size(T, block), _size(S, block)
    window = inputs.window if isinstance(inputs.window, int) else None
    bias = inputs.bias.function if isinstance(inputs.bias, Bias) else None
    static = _Static(
        inputs.causal,
        window,
        inputs.softcap,
        float(inputs.scale),
        S,
        bias,
        sizes,
        inputs.scores_dtype,
        0 if starts is None else starts.offset,
    )
    q = _blocks(inputs.q.reshape(B, T, K, N // K, H), sizes[0])
    k, v = (_blocks(x, sizes[1]) for x in (inputs.k, inputs.v))
    marks: PyTree = {"window": None if window is not None else inputs.window}
    marks["starts"] = None if starts is None else (starts.t, starts.s)
    if inputs.segments is not None:
        marks |= {"t": _blocks(inputs.segments[0], sizes[0]), "s": _blocks(inputs.segments[1], sizes[1])}
    operand = inputs.bias.operand if isinstance(inputs.bias, Bias) else _padded(inputs.bias, (B, N, K), sizes)
    return static, (q, k, v, operand, marks)


def _size(length: int, most: int) -> int:
    """Return the size of blocks that are as many as blocks of `most` would be, and leave little to pad.

    It is a multiple of 16, as matrix units want.
    """
    even = -(-length // max(1, -(-length // most)))
    return min(most, max(1, -(-even // _MULTIPLE)) * _MULTIPLE)


def _blocks(x: jax.Array, size: int) -> jax.Array:
    """Return [blocks, B, size, ...] of [B, T, ...], with zeros after the last."""
    x = jnp.pad(x, [(0, 0), (0, -x.shape[1] % size), *[(0, 0)] * (x.ndim - 2)])
    return jnp.moveaxis(x.reshape(x.shape[0], -1, size, *x.shape[2:]), 1, 0)


def _rows(x: jax.Array, length: int) -> jax.Array:
    """Return [B, T, ...] of [blocks, B, size, ...]."""
    x = jnp.moveaxis(x, 0, 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :length]


def _padded(bias: jax.Array | None, sizes: tuple[int, int, int], block: tuple[int, int]) -> jax.Array | None:
    """Return [B or 1, K or 1, G or 1, T, S] of [B or 1, N or 1, T, S], in whole blocks."""
    if bias is None:
        return None
    _, N, K = sizes
    heads = (1, 1) if bias.shape[1] == 1 else (K, N // K)
    bias = bias.reshape(bias.shape[0], *heads, *bias.shape[2:])
    return jnp.pad(bias, [*[(0, 0)] * 3, (0, -bias.shape[3] % block[0]), (0, -bias.shape[4] % block[1])])


def _pairs(static: _Static, num_q: int, num_k: int) -> np.ndarray:
    """Return the pairs of blocks of which some query may see some key, int32[pairs, 2], queries in order."""
    return np.array([*_visible_pairs(static, num_q, num_k)], np.int32).reshape(-1, 2)


def _visible_pairs(static: _Static, num_q: int, num_k: int) -> Iterator[tuple[int, int]]:
    t, s = static.block
    reach, offset = static.window, static.offset
    for i in range(num_q):
        for j in range(num_k):
            if offset is None:
                yield i, j
                continue
            nearest, farthest = offset + i * t - (j + 1) * s + 1, offset + (i + 1) * t - 1 - j * s
            if static.causal and farthest < 0:
                continue
            if reach is not None and (nearest >= reach or (not static.causal and farthest <= -reach)):
                continue
            yield i, j


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    static: _Static, q: jax.Array, k: jax.Array, v: jax.Array, operand: PyTree, marks: PyTree
) -> tuple[jax.Array, jax.Array]:
    """Return [blocks, B, t, K, G, H] and the logarithms of the sums, [blocks, B, t, K, G]."""

    def step(sums: PyTree, pair: jax.Array) -> tuple[PyTree, None]:
        block = _block_of(static, pair, marks)
        previous = jax.tree.map(lambda x: _get(x, block.i), sums)
        scores = _scores(static, block, q, k, operand, marks)[0]
        largest = jnp.maximum(previous["largest"], scores.max(-1))
        finite = jnp.where(jnp.isfinite(largest), largest, 0)
        weights, shrunk = jnp.exp(scores - finite[..., None]), jnp.exp(previous["largest"] - finite)
        values = jnp.einsum(
            "bkgts,bskh->bkgth",
            weights.astype(v.dtype),
            _get(v, block.j),
            preferred_element_type=static.dtype,
        )
        new = {
            "largest": largest,
            "total": previous["total"] * shrunk + weights.sum(-1),
            "values": previous["values"] * shrunk[..., None] + values,
        }
        return jax.tree.map(lambda x, part: _put(x, part, block.i), sums, new), None

    blocks, B, t, K, G, H = q.shape
    shape = blocks, B, K, G, t
    start = {
        "largest": jnp.full(shape, -jnp.inf, static.dtype),
        "total": jnp.zeros(shape, static.dtype),
        "values": jnp.zeros((*shape, H), static.dtype),
    }
    sums, _ = jax.lax.scan(step, start, jnp.asarray(_pairs(static, blocks, k.shape[0])))
    is_empty = sums["total"] == 0
    out = sums["values"] / jnp.where(is_empty, 1, sums["total"])[..., None]
    lse = jnp.where(is_empty, -jnp.inf, sums["largest"] + jnp.log(jnp.where(is_empty, 1, sums["total"])))
    return jnp.moveaxis(out, 4, 2), jnp.moveaxis(lse, 4, 2)


def _attend_forward(static: _Static, *inputs: Any) -> tuple[Any, Any]:
    out, lse = _attend(static, *inputs)
    out, lse = checkpoint_name(out, "attention"), checkpoint_name(lse, "attention")
    return (out, lse), (inputs, out, lse)


@jax.named_scope(_SCOPE)
def _attend_backward(static: _Static, residuals: Any, changes: Any) -> tuple[Any, ...]:
    """Return the gradients of queries, keys, values and the bias's operand."""
    inputs, *results = residuals
    gradients = _gradients(static, inputs, results, changes)
    like = dict(zip(("q", "k", "v", "operand"), inputs, strict=False))
    cast = jax.tree.map(lambda like, x: x.astype(like.dtype), like, gradients)
    return cast["q"], cast["k"], cast["v"], cast["operand"], None


def _gradients(static: _Static, inputs: Any, results: Any, changes: Any) -> dict[str, PyTree]:
    """Return the gradients in the dtype of sums; results and changes are those over all keys."""
    q, k, v, operand, marks = inputs
    (out, lse), (d_out, d_lse) = results, changes
    # A row of the softmax's Jacobian needs the sum over all of its keys, which is that of out * d_out.
    delta = jnp.moveaxis((out * d_out).sum(-1) - d_lse, 2, 4)
    lse = jnp.moveaxis(jnp.where(jnp.isfinite(lse), lse, 0), 2, 4)
    d_out = jnp.moveaxis(d_out, 2, 4).astype(v.dtype)

    def step(sums: PyTree, pair: jax.Array) -> tuple[PyTree, None]:
        block = _block_of(static, pair, marks)
        # `jax.checkpoint` gives recomputed operations this name, and the count of FLOPs looks for it.
        with jax.named_scope("rematted_computation"):
            scores, slope, add_bias = _scores(static, block, q, k, operand, marks)
        q_t, k_s, v_s, d_out_t = (
            _get(x, i) for x, i in ((q, block.i), (k, block.j), (v, block.j), (d_out, block.i))
        )
        weights = jnp.exp(scores - _get(lse, block.i)[..., None])
        product = partial(jnp.einsum, preferred_element_type=static.dtype)
        d_v = product("bkgts,bkgth->bskh", weights.astype(v.dtype), d_out_t)
        d_scores = weights * (product("bkgth,bskh->bkgts", d_out_t, v_s) - _get(delta, block.i)[..., None])
        d_products = ((d_scores * slope) * static.scale).astype(q.dtype)
        new = {
            "q": _add(sums["q"], product("bkgts,bskh->btkgh", d_products, k_s), block.i),
            "k": _add(sums["k"], product("bkgts,btkgh->bskh", d_products, q_t), block.j),
            "v": _add(sums["v"], d_v, block.j),
            "operand": add_bias(sums["operand"], d_scores),
        }
        return new, None

    wide = partial(jnp.zeros_like, dtype=static.dtype)
    start = {"q": wide(q), "k": wide(k), "v": wide(v), "operand": jax.tree.map(wide, operand)}
    sums, _ = jax.lax.scan(step, start, jnp.asarray(_pairs(static, q.shape[0], k.shape[0])))
    return sums


_attend.defvjp(_attend_forward, _attend_backward)


def _get(x: jax.Array, i: jax.Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(x, i, keepdims=False)


def _put(x: jax.Array, part: jax.Array, i: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(x, part, i, axis=0)


def _add(x: jax.Array, part: jax.Array, i: jax.Array) -> jax.Array:
    return _put(x, _get(x, i) + part, i)


def _block_of(static: _Static, pair: jax.Array, marks: PyTree) -> _Block:
    (i, j), (t, s) = pair, static.block
    at_t, at_s = i * t + jnp.arange(t), j * s + jnp.arange(s)
    is_key = at_s < static.length
    if marks["starts"] is not None:
        at_t, at_s = at_t + marks["starts"][0], at_s + marks["starts"][1]
    return _Block(i, j, at_t, at_s, is_key)


def _scores(
    static: _Static, block: _Block, q: jax.Array, k: jax.Array, operand: PyTree, marks: PyTree
) -> Any:
    """Return the scores [B, K, G, t, s] of a pair of blocks, -inf where a query does not see a key.

    Also return their derivative by the products, before the bias, and a function that adds the gradient of
    the bias's operand to a sum, given the gradient of the scores.
    """
    q_t, k_s = _get(q, block.i), _get(k, block.j)
    scores = jnp.einsum("btkgh,bskh->bkgts", q_t, k_s, preferred_element_type=static.dtype)
    scores, slope = scores * static.scale, jnp.ones((), static.dtype)
    if static.softcap is not None:
        bent = jnp.tanh(scores / static.softcap)
        scores, slope = static.softcap * bent, 1 - bent**2
    bias, add = _bias(static, block, operand, scores.shape)
    if bias is not None:
        scores += bias
    segments = (_get(marks["t"], block.i), _get(marks["s"], block.j)) if "t" in marks else None
    window = static.window if static.window is not None else marks["window"]
    mask = visible(static.causal, window, segments, block.t, block.s)
    # The last block of keys is padded.
    if static.length % static.block[1]:
        is_key = block.is_key[None, None]
        mask = is_key if mask is None else mask & is_key
    if mask is not None:
        scores = jnp.where(mask[:, None, None], scores, -jnp.inf)
    return scores, slope, add


def _bias(static: _Static, block: _Block, operand: PyTree, shape: tuple[int, ...]) -> Any:
    """Return the bias of a pair of blocks, and a function that adds the gradient of its operand."""
    if static.bias is not None:
        _, K, G, t, s = shape

        def function(operand: PyTree) -> jax.Array:
            return static.bias(operand, block.t, block.s).astype(static.dtype).reshape(K, G, t, s)

        bias, pulled = jax.vjp(function, operand)
        return bias, lambda sums, change: jax.tree.map(jnp.add, sums, pulled(change.sum(0))[0])
    if operand is None:
        return None, lambda sums, change: sums
    t, s = static.block
    start = 0, 0, 0, block.i * t, block.j * s
    bias = jax.lax.dynamic_slice(operand, start, (*operand.shape[:3], t, s))
    axes = tuple(axis for axis in range(3) if operand.shape[axis] == 1)

    def add(sums: jax.Array, change: jax.Array) -> jax.Array:
        part = change.sum(axes, keepdims=True)
        return jax.lax.dynamic_update_slice(sums, part.astype(sums.dtype), start)

    return bias, add
