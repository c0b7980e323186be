"""`Decoding`: settings for the choice of the next token and for the end of a row.

The functions that use them are pure, of logits and of the row so far.

Dimensions: B rows, V vocabulary, S positions of a row, C choices, W length of the longest choice or stop.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.base._internal import documented, explained_as
from meshwright.errors import UsageError


@documented
@explained_as("lm.Decoding")
@dataclass(frozen=True)
class Decoding:
    """Settings for the choice of the next token, and for the end of a row. The default is greedy.

    The logits are changed in this order: choices, repetition penalty, temperature, `top_k`, `top_p`, `min_p`.

    Raises:
      UsageError: A value is out of its range, or has no effect beside the others.

    Example:
      >>> mw.lm.Decoding(temperature=0.8, top_p=0.95, stop=(0, (13, 10))).stop
      ((0,), (13, 10))
    """

    max_new_tokens: int = 64
    """The number of tokens after which a row ends."""
    temperature: float = 0.0
    """The logits are divided by this before a token is drawn. 0 takes the most likely token."""
    top_k: int | None = None
    """Only so many of the most likely tokens can be drawn."""
    top_p: float | None = None
    """Only the most likely tokens that together have this probability can be drawn: nucleus sampling,
    Holtzman et al., arXiv:1904.09751."""
    min_p: float | None = None
    """Only tokens with at least this share of the highest probability can be drawn, Nguyen et al.,
    arXiv:2407.01082."""
    repetition_penalty: float = 1.0
    """Logits of tokens that the row has already are divided by this if positive, and multiplied if negative:
    Keskar et al., arXiv:1909.05858. The prompt counts, except that of an encoder-decoder."""
    beams: int = 1
    """The number of rows that beam search keeps for each prompt. Its result is the best of them."""
    length_penalty: float = 1.0
    """The score of a row that beam search has ended is its log probability over its length to this power."""
    stop: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens, each of which ends a row when it is generated. It is the end of the result. A
    token alone, such as an end-of-text token, may be given as a number."""
    choices: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens, if the result must be one of them. Empty for any result."""

    def __post_init__(self) -> None:
        for name in ("stop", "choices"):
            object.__setattr__(self, name, _sequences(name, getattr(self, name)))
        problems = [text for wrong, text in _rules(self) if wrong]
        if problems:
            raise UsageError("cannot generate with these settings:\n  " + "\n  ".join(problems))

    @property
    def is_greedy(self) -> bool:
        """True if each token is the most likely one."""
        return self.temperature == 0


def _sequences(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    """Return sequences of tokens as tuples."""
    value = (value,) if isinstance(value, Integral) else value
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        raise UsageError(f"{name} must be a list of tokens or of sequences of tokens; found {value!r}.")
    try:
        sequences = tuple((int(x),) if isinstance(x, Integral) else tuple(map(int, x)) for x in value)
    except (TypeError, ValueError):
        raise UsageError(
            f"{name} must hold sequences of tokens, which are whole numbers; found {value!r}.\n"
            "  Encode texts with the tokenizer first."
        ) from None
    if any(not sequence or min(sequence) < 0 for sequence in sequences):
        raise UsageError(f"{name} has an empty sequence or a negative token: {sequences}.")
    return sequences


def _rules(d: Decoding) -> list[tuple[bool, str]]:
    drawn = [f"{x}={getattr(d, x)}" for x in ("top_k", "top_p", "min_p") if getattr(d, x) is not None]
    prefixes = [(a, b) for a in d.choices for b in d.choices if a != b and b[: len(a)] == a]
    return [
        (d.max_new_tokens < 1, f"max_new_tokens={d.max_new_tokens}: expected at least 1."),
        (not d.temperature >= 0, f"temperature={d.temperature}: expected 0 or a positive number."),
        (d.top_k is not None and d.top_k < 1, f"top_k={d.top_k}: expected at least 1, or None."),
        (d.top_p is not None and not 0 < d.top_p <= 1, f"top_p={d.top_p}: expected above 0, up to 1."),
        (d.min_p is not None and not 0 < d.min_p <= 1, f"min_p={d.min_p}: expected above 0, up to 1."),
        (not d.repetition_penalty > 0, f"repetition_penalty={d.repetition_penalty}: expected above 0."),
        (d.beams < 1, f"beams={d.beams}: expected at least 1."),
        (d.is_greedy and bool(drawn), f"{', '.join(drawn)} has no effect with temperature=0: draw with 1.0."),
        (d.beams > 1 and not d.is_greedy, f"beams={d.beams} needs temperature=0: beam search draws nothing."),
        (d.beams == 1 and d.length_penalty != 1, "length_penalty has no effect without beams."),
        (
            bool(prefixes),
            f"choice {prefixes[:1]}: the first is the beginning of the second. End each with a stop token.",
        ),
        (bool(d.choices) and max(map(len, d.choices)) > d.max_new_tokens, "a choice exceeds max_new_tokens."),
    ]


GREEDY = Decoding()
"""The most likely token each time, and no end but `max_new_tokens`."""


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
    """Return the next token of each row, int32[B]."""
    if decoding.is_greedy:
        return jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)

    # A draw depends on the key, the row's number and the count of its tokens, and not on the rows beside it
    # or the devices that compute it.
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
