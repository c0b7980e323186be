"""The distribution of the next token: pure functions of logits and of the row so far.

Dimensions: B rows, V vocabulary, S positions of a row, C choices, W length of the longest choice or stop.
"""

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.lm._generation._decoding import Decoding


def adjusted(
    decoding: Decoding, logits_BV: jax.Array, tokens_BS: jax.Array, lengths_B: jax.Array, begins_B: jax.Array
) -> jax.Array:
    """Return the logits with choices and the repetition penalty: float32[B, V], -inf where not allowed."""
    logits_BV = logits_BV.astype(jnp.float32)
    if decoding.choices:
        allowed_BV = _allowed(decoding, logits_BV.shape[1], tokens_BS, lengths_B, begins_B)
        logits_BV = jnp.where(allowed_BV, logits_BV, -jnp.inf)
    if decoding.repetition_penalty != 1:
        is_token_BS = jnp.arange(tokens_BS.shape[1]) < lengths_B[:, None]
        rows_B1 = jnp.arange(len(tokens_BS))[:, None]
        has_BV = jnp.zeros(logits_BV.shape, bool).at[rows_B1, tokens_BS].max(is_token_BS)
        penalty = decoding.repetition_penalty
        lowered_BV = jnp.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
        logits_BV = jnp.where(has_BV, lowered_BV, logits_BV)
    return logits_BV


def narrowed(decoding: Decoding, logits_BV: jax.Array) -> jax.Array:
    """Return the logits by which a token is drawn, -inf for those that temperature and bounds leave out."""
    logits_BV = logits_BV / decoding.temperature
    if decoding.top_k is not None:
        k = min(decoding.top_k, logits_BV.shape[1])
        lowest_B = jax.lax.top_k(logits_BV, k)[0][:, -1:]
        logits_BV = jnp.where(logits_BV < lowest_B, -jnp.inf, logits_BV)
    if decoding.top_p is not None:
        logits_BV = _nucleus(logits_BV, decoding.top_p)
    if decoding.min_p is not None:
        highest_B = logits_BV.max(-1, keepdims=True)
        logits_BV = jnp.where(logits_BV < highest_B + np.log(decoding.min_p), -jnp.inf, logits_BV)
    return logits_BV


def _nucleus(logits_BV: jax.Array, top_p: float) -> jax.Array:
    """Keep the most likely tokens up to and including the one that reaches the probability."""
    # `jnp.sort` ascends, and the most likely tokens must come first.
    sorted_BV = -jnp.sort(-logits_BV, axis=-1)
    before_BV = jnp.cumsum(jax.nn.softmax(sorted_BV, axis=-1), axis=-1) - jax.nn.softmax(sorted_BV, axis=-1)
    count_B1 = jnp.sum(before_BV < top_p, axis=-1, keepdims=True)
    lowest_B1 = jnp.take_along_axis(sorted_BV, jnp.maximum(count_B1, 1) - 1, axis=-1)
    return jnp.where(logits_BV < lowest_B1, -jnp.inf, logits_BV)


def chosen(
    decoding: Decoding, logits_BV: jax.Array, key: jax.Array, numbers_B: jax.Array, counts_B: jax.Array
) -> jax.Array:
    """Return the next token of each row, int32[B].

    What is drawn depends on the key, the row's number and the count of its tokens, and not on the rows beside
    it or the devices that compute it.
    """
    if decoding.is_greedy:
        return jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)

    def draw(number: jax.Array, count: jax.Array, logits_V: jax.Array) -> jax.Array:
        return jax.random.categorical(jax.random.fold_in(jax.random.fold_in(key, number), count), logits_V)

    return jax.vmap(draw)(numbers_B, counts_B, narrowed(decoding, logits_BV)).astype(jnp.int32)


def chosen_by_row(
    temperature_B: jax.Array,
    top_k_B: jax.Array,
    top_p_B: jax.Array,
    min_p_B: jax.Array,
    logits_BV: jax.Array,
    key: jax.Array,
    numbers_B: jax.Array,
    counts_B: jax.Array,
) -> jax.Array:
    """Return the next token of each row, int32[B], as `chosen`, where each row has settings of its own."""
    greedy_B = jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)

    def drawn() -> jax.Array:
        scaled_BV = logits_BV / jnp.where(temperature_B > 0, temperature_B, 1)[:, None]
        sorted_BV = -jnp.sort(-scaled_BV, axis=-1)
        is_top_BV = jnp.arange(sorted_BV.shape[1]) < top_k_B[:, None]
        sorted_BV = jnp.where(is_top_BV, sorted_BV, -jnp.inf)
        probs_BV = jax.nn.softmax(sorted_BV, axis=-1)
        is_before_BV = jnp.cumsum(probs_BV, axis=-1) - probs_BV < top_p_B[:, None]
        count_B1 = (is_before_BV & is_top_BV).sum(-1, keepdims=True)
        lowest_B1 = jnp.take_along_axis(sorted_BV, jnp.maximum(count_B1, 1) - 1, axis=-1)
        lowest_B1 = jnp.maximum(lowest_B1, sorted_BV[:, :1] + jnp.log(min_p_B)[:, None])
        narrow_BV = jnp.where(scaled_BV < lowest_B1, -jnp.inf, scaled_BV)
        keys_B = jax.vmap(lambda n, c: jax.random.fold_in(jax.random.fold_in(key, n), c))(numbers_B, counts_B)
        return jax.vmap(jax.random.categorical)(keys_B, narrow_BV).astype(jnp.int32)

    # The sort over the vocabulary is skipped if all rows are greedy.
    drawn_B = jax.lax.cond((temperature_B > 0).any(), drawn, lambda: greedy_B)
    return jnp.where(temperature_B > 0, drawn_B, greedy_B)


def ended(decoding: Decoding, tokens_BS: jax.Array, lengths_B: jax.Array, begins_B: jax.Array) -> jax.Array:
    """Return whether each row ends with a stop sequence, or is a whole choice: bool[B]."""
    # The number of new tokens of each row: a stop sequence must not reach into the prompt.
    counts_B, is_end_B = lengths_B - begins_B, jnp.zeros(len(tokens_BS), bool)
    if decoding.stop:
        stops_CW, sizes_C = _padded(decoding.stop)
        for stop_W, size in zip(stops_CW, sizes_C, strict=True):
            tail_BW = _from(tokens_BS, lengths_B - size, len(stop_W))
            same_B = _begins_with(tail_BW, stop_W[None], np.array([size]))[:, 0]
            is_end_B |= same_B & (counts_B >= size)
    if decoding.choices:
        choices_CW, sizes_C = _padded(decoding.choices)
        row_BW = _from(tokens_BS, begins_B, choices_CW.shape[1])
        is_whole_BC = _begins_with(row_BW, choices_CW, sizes_C) & (sizes_C == counts_B[:, None])
        is_end_B |= is_whole_BC.any(-1)
    return is_end_B


def _allowed(
    decoding: Decoding, vocabulary: int, tokens_BS: jax.Array, lengths_B: jax.Array, begins_B: jax.Array
) -> jax.Array:
    """Return the tokens that continue some choice, bool[B, V]."""
    choices_CW, sizes_C = _padded(decoding.choices)
    counts_B = lengths_B - begins_B
    row_BW = _from(tokens_BS, begins_B, choices_CW.shape[1])
    fits_BC = _begins_with(row_BW, choices_CW, jnp.minimum(counts_B[:, None], sizes_C))
    goes_on_BC = fits_BC & (counts_B[:, None] < sizes_C)
    next_BC = jnp.asarray(choices_CW).T.at[counts_B].get(mode="clip")
    rows_B1 = jnp.arange(len(tokens_BS))[:, None]
    allowed_BV = jnp.zeros((len(tokens_BS), vocabulary), bool).at[rows_B1, next_BC].max(goes_on_BC)
    # A row that has ended may continue with any token.
    return allowed_BV | ~goes_on_BC.any(-1, keepdims=True)


def _padded(sequences: tuple[tuple[int, ...], ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences as int32[C, W], and their lengths."""
    sizes = np.array([len(sequence) for sequence in sequences], np.int32)
    padded = np.zeros((len(sequences), sizes.max()), np.int32)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
    return padded, sizes


def _from(tokens_BS: jax.Array, starts_B: jax.Array, width: int) -> jax.Array:
    """Return the tokens of each row from a position on, int32[B, W]."""
    positions_BW = starts_B[:, None] + jnp.arange(width)
    return jnp.take_along_axis(tokens_BS, jnp.clip(positions_BW, 0, tokens_BS.shape[1] - 1), axis=1)


def _begins_with(row_BW: jax.Array, sequences_CW: np.ndarray, sizes: jax.Array | np.ndarray) -> jax.Array:
    """Return whether the first `sizes` tokens of each row are those of each sequence: bool[B, C]."""
    same_BCW = row_BW[:, None] == sequences_CW
    return (same_BCW | (jnp.arange(row_BW.shape[1]) >= jnp.asarray(sizes)[..., None])).all(-1)
