"""Scores of language models: the loss per token and per byte, and perplexities."""

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from meshwright.engine._evaluation._batches import Scores
from meshwright.errors import UsageError
from meshwright.observe._internal import Mean


def token_means(
    losses: jax.Array,
    tokens: jax.Array,
    segments: jax.Array | None = None,
    token_weights: jax.Array | None = None,
    *,
    bytes_by_token: ArrayLike | None = None,
) -> dict[str, Mean]:
    """Return the mean loss per token and, if asked, per byte, for a `measure`: exact also for packed rows.

    Padding and the first token of each segment do not count. Means over examples of different lengths are
    weighted by their tokens, so the batch size and the mesh change no figure.

    Args:
      losses: The loss of each token in nats, float[B, T - 1], that of the first token left out, as
        `mw.lm.decoder.losses` returns it. If also the first token has a loss, [B, T].
      tokens: The tokens, int[B, T].
      segments: The segment of each token, int[B, T], if rows are packed or padded; 0 is padding.
      token_weights: How much each token counts, float[B, T]: 0 for those of a question. By default
        each counts once.
      bytes_by_token: The number of bytes that each token stands for, int[V], as
        `mw.lm.count_bytes` returns it. None gives no loss per byte.

    Returns:
      `loss`, in nats per token, and `loss_per_byte`, in nats per byte; their totals and counts are [B].

    Raises:
      UsageError: The shapes do not fit.

    Example:
      >>> losses, tokens = jnp.array([[1.0, 3.0, 9.0]]), jnp.array([[97, 98, 99, 0]])
      >>> counts = mw.lm.count_bytes(mw.lm.Bytes(), 256)
      >>> means = mw.engine.token_means(losses, tokens, jnp.array([[1, 1, 1, 0]]), bytes_by_token=counts)
      >>> {name: mean.value.tolist() for name, mean in means.items()}
      {'loss': [2.0], 'loss_per_byte': [2.0]}
    """
    rows, length = tokens.shape
    if losses.shape not in ((rows, length), (rows, length - 1)):
        raise UsageError(
            f"tokens {tokens.shape} need losses of shape {(rows, length - 1)}, or {(rows, length)} if the "
            f"first token has a loss; found {losses.shape}."
        )
    for name, x in {"segments": segments, "token_weights": token_weights}.items():
        if x is not None and x.shape != tokens.shape:
            raise UsageError(f"{name} have shape {x.shape}, but the tokens have {tokens.shape}.")
    first = length - losses.shape[1]
    counts = jnp.ones(losses.shape) if token_weights is None else token_weights[:, first:].astype(jnp.float32)
    if segments is not None:
        is_token = segments[:, first:] != 0
        follows = segments[:, :-1] == segments[:, 1:] if first else True
        counts *= is_token & follows
    total = jnp.where(counts == 0, 0, counts * losses).sum(axis=1)
    means = {"loss": Mean(total, counts.sum(axis=1))}
    if bytes_by_token is not None:
        num_bytes = jnp.asarray(bytes_by_token)[tokens[:, first:]]
        means["loss_per_byte"] = Mean(total, (counts * num_bytes).sum(axis=1))
    return means


def perplexity(scores: Scores) -> Scores:
    """Return perplexities, given mean losses: a `metric_fn` for an evaluation of a language model.

    Args:
      scores: The averages, with `loss` in nats per token, and maybe `loss_per_byte`, as `token_means` gives
        them.

    Returns:
      `perplexity`, exp(loss); with `loss_per_byte` also `byte_perplexity`, its exponential, and
      `bits_per_byte`, it divided by log(2).

    Raises:
      UsageError: There is no `loss`.

    Example:
      >>> mw.engine.perplexity({"loss": 0.0, "loss_per_byte": math.log(2)})
      {'perplexity': 1.0, 'byte_perplexity': 2.0, 'bits_per_byte': 1.0}
    """
    if "loss" not in scores:
        raise UsageError(
            f"perplexity needs the mean `loss` in nats per token; found {', '.join(scores) or 'no scores'}.\n"
            '  Return it from the measure: {"loss": losses}, or mw.engine.token_means(...).'
        )
    means = {"perplexity": _exp(scores["loss"])}
    if "loss_per_byte" in scores:
        per_byte = scores["loss_per_byte"]
        means |= {"byte_perplexity": _exp(per_byte), "bits_per_byte": per_byte / math.log(2)}
    return means


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf
