"""Rows of tokens that grow together: a pure step, and the loop of steps.

Dimensions: B rows, S positions of a row, V vocabulary.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from meshwright.base._internal import PyTree
from meshwright.lm._generation._decoding import Decoding, adjusted, chosen, chosen_by_row, ended
from meshwright.lm._generation._model import Model


class Draws(NamedTuple):
    """Settings for the choice of tokens, one for each row. Their arrays may also be NumPy's."""

    temperature: Any
    """The divisor of the logits, float32[B]; 0 takes the most likely token."""
    top_k: Any
    """The number of tokens that can be drawn, int32[B]; for all, the largest number."""
    top_p: Any
    """The probability of the tokens that can be drawn, float32[B]; 1 for all."""
    min_p: Any
    """The least share of the highest probability, float32[B]; 0 for all."""


class Rows(NamedTuple):
    """Rows that are being generated. The cache has all tokens of a row but the last."""

    cache: PyTree
    """The model's cache."""
    tokens: jax.Array
    """The prompt of each row and the new tokens, int32[B, S]; the positions after them mean nothing."""
    lengths: jax.Array
    """The number of tokens of each row, the prompt included, int32[B]."""
    begins: jax.Array
    """The length of each row's prompt, int32[B]."""
    limits: jax.Array
    """The length at which each row ends, int32[B]."""
    numbers: jax.Array
    """The number of each row's prompt, uint32[B]."""
    is_done: jax.Array
    """True for rows that have ended, bool[B]."""
    draws: Draws | None = None
    """Settings of each row; None if the decoding holds for all rows."""


class Prompts(NamedTuple):
    """Rows to begin with; their arrays may also be NumPy's."""

    tokens: Any
    """The prompts, int32[B, S], padded at their end; of an encoder-decoder its start tokens."""
    lengths: Any
    """The number of tokens of each prompt, int32[B]."""
    limits: Any
    """The length at which each row ends, the prompt included, int32[B]."""
    numbers: Any
    """A number for each prompt, from which its draws follow, uint32[B]."""
    inputs: tuple[Any, Any] | None = None
    """The padded inputs of an encoder-decoder and whether each is an input, int32[B, P] and bool[B, P]."""
    draws: Draws | None = None
    """As in `Rows`."""


def begun(model: Model, params: PyTree, prompts: Prompts) -> Rows:
    """Return rows with their prompts in the cache, except the last token, which the first step gives it."""
    B, S = prompts.tokens.shape
    size = min(model.prefill, S)
    cache = model.init_cache(params, B, S)
    if model.encode is not None and prompts.inputs is not None:
        cache = model.encode(params, *prompts.inputs, cache)

    def piece(number: jax.Array, cache: PyTree) -> PyTree:
        # The last piece begins earlier where it would reach past the row, and writes some positions again.
        start = jnp.minimum(number * size, S - size)
        tokens = jax.lax.dynamic_slice_in_dim(prompts.tokens, start, size, axis=1)
        new = model.apply(params, tokens, cache, jnp.full(B, start, jnp.int32))[1]
        # With `prefill` 1 a model never gets padding: rows that have read their prompt keep their cache.
        return new if size > 1 else _where(start < prompts.lengths - 1, new, cache)

    # The number of pieces is data, not a shape, so one program serves prompts of all lengths.
    num_pieces = (prompts.lengths.max() - 1 + size - 1) // size
    cache = jax.lax.fori_loop(0, num_pieces, piece, cache)
    lengths, limits, is_done = prompts.lengths, prompts.limits, prompts.lengths >= prompts.limits
    return Rows(cache, prompts.tokens, lengths, lengths, limits, prompts.numbers, is_done, prompts.draws)


def _where(is_new_B: jax.Array, new: PyTree, old: PyTree) -> PyTree:
    """Return the rows of one cache or of the other."""
    return jax.tree.map(lambda x, y: jnp.where(is_new_B.reshape(-1, *[1] * (x.ndim - 1)), x, y), new, old)


def advanced(
    model: Model,
    decoding: Decoding,
    params: PyTree,
    rows: Rows,
    key: jax.Array,
    num_tokens: jax.Array,
    num_ends: jax.Array,
) -> Rows:
    """Return the rows with up to `num_tokens` more tokens each, fewer if `num_ends` of them end before."""
    # The loop ends early when `num_ends` more rows have ended, as each may then get a new prompt.
    most_done = jnp.minimum(rows.is_done.sum() + num_ends, len(rows.is_done))

    def goes_on(carried: tuple[jax.Array, Rows]) -> jax.Array:
        return (carried[0] < num_tokens) & (carried[1].is_done.sum() < most_done)

    def step(carried: tuple[jax.Array, Rows]) -> tuple[jax.Array, Rows]:
        return carried[0] + 1, _stepped(model, decoding, params, carried[1], key)

    return jax.lax.while_loop(goes_on, step, (jnp.int32(0), rows))[1]


def next_logits(model: Model, params: PyTree, rows: Rows) -> tuple[jax.Array, PyTree]:
    """Return the logits after the last token of each row, float32[B, V], and the cache with it."""
    last_B1 = jnp.take_along_axis(rows.tokens, rows.lengths[:, None] - 1, axis=1)
    logits_B1V, cache = model.apply(params, last_B1, rows.cache, rows.lengths - 1)
    return logits_B1V[:, 0].astype(jnp.float32), cache


def _stepped(model: Model, decoding: Decoding, params: PyTree, rows: Rows, key: jax.Array) -> Rows:
    logits_BV, cache = next_logits(model, params, rows)
    logits_BV = adjusted(decoding, logits_BV, rows.tokens, rows.lengths, rows.begins)
    drawn = key, rows.numbers, rows.lengths - rows.begins
    if rows.draws is None:
        token_B = chosen(decoding, logits_BV, *drawn)
    else:
        token_B = chosen_by_row(*rows.draws, logits_BV, *drawn)
    # A row that has ended writes past its end, and such a write is dropped.
    positions_B = jnp.where(rows.is_done, rows.tokens.shape[1], rows.lengths)
    tokens_BS = rows.tokens.at[jnp.arange(len(positions_B)), positions_B].set(token_B, mode="drop")
    lengths_B = rows.lengths + ~rows.is_done
    is_end_B = ended(decoding, tokens_BS, lengths_B, rows.begins) | (lengths_B >= rows.limits)
    return rows._replace(cache=cache, tokens=tokens_BS, lengths=lengths_B, is_done=rows.is_done | is_end_B)
