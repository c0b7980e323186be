"""Generation of one batch as a pure function, for use inside `jit`: in a prediction or a training step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from meshwright.base._internal import PyTree
from meshwright.errors import UsageError
from meshwright.lm._generation._beams import beam_search
from meshwright.lm._generation._decoding import Decoding
from meshwright.lm._generation._model import Model
from meshwright.lm._generation._rows import Prompts, advanced, begun


class Generated(NamedTuple):
    """The rows that were generated."""

    tokens: jax.Array
    """The new tokens, int32[B, `max_new_tokens`]; 0 after the end of each row."""
    lengths: jax.Array
    """The number of new tokens of each row, int32[B]. A stop sequence that ended the row counts."""


def generate_batch(
    model: Model,
    params: PyTree,
    prompts: jax.Array,
    lengths: jax.Array,
    decoding: Decoding,
    key: jax.Array | None = None,
) -> Generated:
    """Return what follows each prompt. A pure function, for use inside `jit`.

    Args:
      model: The model.
      params: Its parameters.
      prompts: The prompts, int[B, P], padded at their end; of an encoder-decoder, its inputs.
      lengths: The number of tokens of each prompt, int[B], at least 1.
      decoding: How tokens are chosen.
      key: The key of all draws. Greedy decoding and beam search need none.

    Raises:
      UsageError: Tokens are drawn, and there is no key; or rows are longer than the model supports.

    Example:
      >>> model = mw.lm.without_cache(lambda params, tokens: params[tokens])  # a table of pairs
      >>> deployer = mw.Deployer(seed=0, verbose=False)
      >>> def predict(params, batch, key):
      ...     decoding = mw.lm.Decoding(temperature=1.0, max_new_tokens=5)
      ...     prompts, lengths = batch["prompt"], batch["length"]
      ...     return mw.lm.generate_batch(model, params, prompts, lengths, decoding, key)
      >>> predictor = mw.Predictor(deployer, predict=predict, output=lambda found: found.tokens.tolist())
      >>> examples = [{"prompt": np.array([1, 2, 3]), "length": np.int32(3)}] * 8
      >>> first, again, other = (predictor.predict(examples, 1, jnp.zeros((9, 9)), seed=x) for x in (1, 1, 2))
      >>> first == again, first == other, len(first[0])
      (True, False, 5)
    """
    if key is None and not decoding.is_greedy:
        raise UsageError(f"temperature={decoding.temperature} draws tokens: give a key.")
    batch = batch_of(model, prompts, lengths, decoding.max_new_tokens)
    if decoding.beams > 1:
        tokens_BS, lengths_B = beam_search(model, decoding, params, batch)
    else:
        rows = begun(model, params, batch)
        key = jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32)) if key is None else key  # nothing is drawn
        limits = jnp.int32(decoding.max_new_tokens), jnp.int32(len(prompts))
        rows = advanced(model, decoding, params, rows, key, *limits)
        tokens_BS, lengths_B = rows.tokens, rows.lengths
    counts_B = lengths_B - batch.lengths
    take = jnp.arange(decoding.max_new_tokens)
    positions_BN = jnp.clip(batch.lengths[:, None] + take, 0, tokens_BS.shape[1] - 1)
    new = jnp.take_along_axis(tokens_BS, positions_BN, axis=1)
    return Generated(jnp.where(take < counts_B[:, None], new, 0), counts_B)


def batch_of(model: Model, prompts: jax.Array, lengths: jax.Array, max_new_tokens: int) -> Prompts:
    """Return a batch to begin with, given padded prompts."""
    prompts, lengths = jnp.asarray(prompts, jnp.int32), jnp.asarray(lengths, jnp.int32)
    B, P = prompts.shape
    numbers = jnp.arange(B, dtype=jnp.uint32)
    if model.encode is not None:
        inputs = prompts, jnp.arange(P) < lengths[:, None]
        ones, starts = jnp.ones(B, jnp.int32), jnp.full((B, 1 + max_new_tokens), model.start, jnp.int32)
        return Prompts(starts, ones, ones + max_new_tokens, numbers, inputs)
    check_positions(model, P + max_new_tokens)
    padded = jnp.pad(prompts, ((0, 0), (0, max_new_tokens)))
    return Prompts(padded, lengths, lengths + max_new_tokens, numbers)


def check_positions(model: Model, length: int) -> None:
    """Check that the model supports rows of this length."""
    if model.positions is not None and length > model.positions:
        raise UsageError(
            f"the longest prompt and what is generated have {length} tokens; the model has {model.positions} "
            "positions.\n  Give shorter prompts, or a smaller max_new_tokens."
        )
