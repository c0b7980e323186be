"""Beam search: the most likely rows of several that are kept for each prompt.

The search is that of `transformers` with its defaults. Of the candidates of a step, those that end may be
among the best rows that have ended, if they are among the first K. A prompt's search ends when its best
running row would be no better than the worst of these.

Dimensions: B prompts, K beams, M candidates, S positions of a row, V vocabulary.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from meshwright.base._internal import PyTree
from meshwright.lm._generation._decoding import Decoding, adjusted, ended
from meshwright.lm._generation._model import Model
from meshwright.lm._generation._rows import Prompts, Rows, begun, next_logits

# Below the score of any row; finite, so that sums and quotients stay numbers.
_WORST = -1e9


class _Beams(NamedTuple):
    rows: Rows
    """The running rows, [B × K]."""
    scores: jax.Array
    """The log probability of each running row, [B, K]."""
    ended: jax.Array
    """The best rows that have ended, [B, K, S]."""
    ended_lengths: jax.Array
    """The length of each, [B, K]."""
    ended_scores: jax.Array
    """The score of each, [B, K]."""
    has_ended: jax.Array
    """True where there is such a row, [B, K]."""
    is_open: jax.Array
    """True for prompts whose search goes on, [B]."""


class _Candidates(NamedTuple):
    tokens: jax.Array
    """The rows, [B, M, S]."""
    lengths: jax.Array
    """The length of each, [B, M]."""
    scores: jax.Array
    """The log probability of each, [B, M]."""
    parents: jax.Array
    """The beam that each continues, [B, M]."""
    is_end: jax.Array
    """True for those that end here, [B, M]."""


def beam_search(
    model: Model, decoding: Decoding, params: PyTree, prompts: Prompts
) -> tuple[jax.Array, jax.Array]:
    """Return the best row of each prompt, int32[B, S], and its length with the prompt, int32[B]."""
    beams = jax.lax.while_loop(
        lambda beams: beams.is_open.any(),
        lambda beams: _stepped(model, decoding, params, beams),
        _first(decoding, begun(model, params, prompts)),
    )
    return beams.ended[:, 0], beams.ended_lengths[:, 0]


def _first(decoding: Decoding, rows: Rows) -> _Beams:
    """Return K copies of each row. All but the first have a score so low that the first step drops them."""
    (B, S), K = rows.tokens.shape, decoding.beams
    worst_BK = jnp.full((B, K), _WORST)
    copies = jax.tree.map(lambda x: jnp.repeat(x, K, axis=0), rows)
    tokens_BKS, lengths_BK = copies.tokens.reshape(B, K, S), copies.lengths.reshape(B, K)
    nothing_BK = jnp.zeros((B, K), bool)
    # All copies of a row are equal at first. The score of one alone is 0, so that the first step drops the
    # others.
    scores_BK = worst_BK.at[:, 0].set(0)
    return _Beams(copies, scores_BK, tokens_BKS, lengths_BK, worst_BK, nothing_BK, ~rows.is_done)


def _stepped(model: Model, decoding: Decoding, params: PyTree, beams: _Beams) -> _Beams:
    K = decoding.beams
    logits, cache = next_logits(model, params, beams.rows)
    candidates = _candidates(decoding, beams, logits)
    # Candidates that end leave the running rows, and may enter those that have ended.
    running_BM = candidates.scores + jnp.where(candidates.is_end, _WORST, 0)
    scores_BK, pick_BK = jax.lax.top_k(running_BM, K)
    rows = _continued(beams, cache, candidates, pick_BK)
    tokens_BKS, lengths_BK, ended_scores_BK, has_ended_BK = _best_ended(decoding, beams, candidates)
    counts_B = (rows.lengths - rows.begins).reshape(-1, K)[:, 0]
    best_B1 = scores_BK[:, :1] / jnp.maximum(counts_B, 1)[:, None] ** decoding.length_penalty
    worst_BK = jnp.where(has_ended_BK, ended_scores_BK.min(-1, keepdims=True), _WORST)
    # A search ends when its best running row would be no better than the worst of the ended ones.
    is_open_B = beams.is_open & (best_B1 > worst_BK).any(-1) & ~candidates.is_end.all(-1)
    return _Beams(rows, scores_BK, tokens_BKS, lengths_BK, ended_scores_BK, has_ended_BK, is_open_B)


def _candidates(decoding: Decoding, beams: _Beams, logits: jax.Array) -> _Candidates:
    """Return the most likely continuations of each prompt's rows, so many that K of them go on."""
    (B, K), (rows, V) = beams.scores.shape, (beams.rows, logits.shape[-1])
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    log_probs = adjusted(decoding, log_probs, rows.tokens, rows.lengths, rows.begins)
    total = (log_probs.reshape(B, K, V) + beams.scores[:, :, None]).reshape(B, K * V)
    ends = len(decoding.stop) + len(decoding.choices)
    # A row can end in `ends` ways. With one candidate more for each row, K of them go on.
    scores_BM, index_BM = jax.lax.top_k(total, min(max(2, 1 + ends) * K, K * V))
    parents_BM, M = index_BM // V, index_BM.shape[1]
    of_parents = lambda x: jnp.take_along_axis(x.reshape(B, K), parents_BM, axis=1)  # noqa: E731
    positions_BM, begins_BM, limits_BM = map(of_parents, (rows.lengths, rows.begins, rows.limits))
    tokens = jnp.take_along_axis(rows.tokens.reshape(B, K, -1), parents_BM[:, :, None], axis=1)
    index = jnp.arange(B)[:, None], jnp.arange(M), positions_BM
    tokens_BMS = tokens.at[index].set((index_BM % V).astype(jnp.int32), mode="drop")
    lengths_BM = positions_BM + 1
    flat = tokens_BMS.reshape(B * M, -1), lengths_BM.reshape(-1), begins_BM.reshape(-1)
    is_end_BM = ended(decoding, *flat).reshape(B, M) | (lengths_BM >= limits_BM)
    return _Candidates(tokens_BMS, lengths_BM, scores_BM, parents_BM, is_end_BM)


def _continued(beams: _Beams, cache: PyTree, candidates: _Candidates, pick_BK: jax.Array) -> Rows:
    """Return the running rows after a step: the picked candidates, with the caches of their parents."""
    (B, K), rows = pick_BK.shape, beams.rows
    parents_BK = jnp.take_along_axis(candidates.parents, pick_BK, axis=1)
    parents = (jnp.arange(B)[:, None] * K + parents_BK).reshape(-1)
    tokens = jnp.take_along_axis(candidates.tokens, pick_BK[:, :, None], axis=1).reshape(B * K, -1)
    lengths = rows.lengths + jnp.repeat(beams.is_open, K)
    return rows._replace(cache=jax.tree.map(lambda x: x[parents], cache), tokens=tokens, lengths=lengths)


def _best_ended(
    decoding: Decoding, beams: _Beams, candidates: _Candidates
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return tokens, lengths and scores of the K best rows that have ended, and whether each has."""
    (B, M), K = candidates.scores.shape, decoding.beams
    begins_B1 = beams.rows.begins.reshape(B, K)[:, :1]
    # Like `transformers`: only ends among the first K candidates count.
    may_BM = candidates.is_end & (jnp.arange(M) < K) & beams.is_open[:, None]
    scores_BM = candidates.scores / (candidates.lengths - begins_B1) ** decoding.length_penalty
    scores = jnp.concatenate([beams.ended_scores, jnp.where(may_BM, scores_BM, _WORST)], axis=1)
    scores_BK, pick_BK = jax.lax.top_k(scores, K)

    def picked(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.take_along_axis(jnp.concatenate([old, new], axis=1), pick_BK, axis=1)

    tokens = jnp.concatenate([beams.ended, candidates.tokens], axis=1)
    tokens_BKS = jnp.take_along_axis(tokens, pick_BK[:, :, None], axis=1)
    lengths_BK = picked(beams.ended_lengths, candidates.lengths)
    return tokens_BKS, lengths_BK, scores_BK, picked(beams.has_ended, may_BM)
