"""The functions of a model that generates: the protocol between models and the loop."""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.base._internal import PyTree
from meshwright.errors import UsageError
from meshwright.lm._generation._decoding import Decoding


@dataclass(frozen=True)
class Model:
    """A model with a cache, as `mw.lm.generate` calls it.

    Its functions are pure. Make it once and use it again: programs are compiled for each `Model` that is not
    equal to an earlier one, and functions are equal only to themselves.

    Example:
      >>> model = mw.lm.Model(
      ...     init_cache=lambda params, batch, length: jnp.zeros((batch, 1)),
      ...     apply=lambda params, tokens, cache, starts: (params["next"][tokens], cache),
      ... )
      >>> params = {"next": jnp.eye(4)[jnp.array([1, 2, 3, 0])]}
      >>> mw.lm.generate(model, params, [[0]], mw.lm.Decoding(max_new_tokens=5))
      [array([1, 2, 3, 0, 1], dtype=int32)]
    """

    init_cache: Callable[[PyTree, int, int], PyTree]
    """`(params, batch, length) -> cache`: an empty cache for so many rows and positions. The first dimension
    of each of its arrays is the row."""
    apply: Callable[[PyTree, jax.Array, PyTree, jax.Array], tuple[jax.Array, PyTree]]
    """`(params, tokens, cache, starts) -> (logits, cache)`: the logits of the next token, [B, T, V], given
    tokens int32[B, T] from the positions `starts`, int32[B], on, and the cache with these tokens. A token
    must see positions up to its own only. Rows may be padded at their end, and positions may be written
    again."""
    encode: Callable[[PyTree, jax.Array, jax.Array, PyTree], PyTree] | None = None
    """`(params, inputs, is_input, cache) -> cache`, for encoder-decoders: the cache with the encoded inputs,
    given int32[B, S] and bool[B, S], which is false for padding. Prompts are then the inputs."""
    start: int = 0
    """The token that the rows of an encoder-decoder begin with."""
    positions: int | None = None
    """The length of the longest row that the model supports; None for no limit."""
    prefill: int = 64
    """The number of tokens of a prompt that `apply` gets at a time. With 1 it never gets padding: rows that
    have read their prompt keep their cache while others go on."""
    config: Any = None
    """The config of the reference model that this is, by which it is written as GGUF; None for others."""
    plain: Callable[[PyTree], PyTree] | None = None
    """Returns the parameters of the reference model, given those of `apply`; None if they are the same."""


def without_cache(logits: Callable[[PyTree, jax.Array], jax.Array]) -> Model:
    """Return a model that computes the whole row again for each token, for models that have no cache.

    It is slow for long rows: the time for a token grows with the bound of the length.

    Args:
      logits: `(params, tokens) -> logits`: the logits of the next token at each position, [B, T, V], which
        depend on this token and those before it only.

    Example:
      >>> model = mw.lm.without_cache(lambda params, tokens: params[tokens])  # a table of pairs
      >>> mw.lm.generate(model, jnp.eye(4)[::-1], [[0], [1]], mw.lm.Decoding(max_new_tokens=3))
      [array([3, 0, 3], dtype=int32), array([2, 1, 2], dtype=int32)]
    """

    def apply(params: PyTree, tokens: jax.Array, cache: jax.Array, starts: jax.Array) -> tuple[Any, Any]:
        length = tokens.shape[1]
        write = jax.vmap(lambda row, new, start: jax.lax.dynamic_update_slice(row, new, (start,)))
        read = jax.vmap(lambda row, start: jax.lax.dynamic_slice_in_dim(row, start, length))
        cache = write(cache, tokens, starts)
        return read(logits(params, cache), starts), cache

    return Model(lambda _, batch, length: jnp.zeros((batch, length), jnp.int32), apply)


def counting(
    init_cache: Callable[[PyTree, int], PyTree],
    apply: Callable[[PyTree, jax.Array, PyTree], tuple[jax.Array, PyTree]],
) -> Model:
    """Return a model of functions that count positions in the cache themselves, such as those of Flax Linen.

    Each row gets a cache of its own, as rows are at different positions. Prompts are read a token at a time.

    Args:
      init_cache: `(params, length) -> cache`: an empty cache for one row of so many positions.
      apply: `(params, tokens, cache) -> (logits, cache)`: the logits of the next token, [1, 1, V], given one
        token, int32[1, 1], and the cache with it.

    Example:
      >>> def init_cache(params, length):
      ...     return {"seen": jnp.zeros(8), "count": jnp.zeros((), jnp.int32)}
      >>> def apply(params, tokens, cache):
      ...     seen = cache["seen"].at[tokens[0, 0]].add(1)
      ...     return (params - seen)[None, None], {"seen": seen, "count": cache["count"] + 1}
      >>> model = mw.lm.counting(init_cache, apply)
      >>> mw.lm.generate(model, jnp.arange(8.0) / 4, [[7, 7, 7], [1]], mw.lm.Decoding(max_new_tokens=4))
      [array([6, 5, 4, 3], dtype=int32), array([7, 6, 5, 4], dtype=int32)]
    """

    def empty(params: PyTree, batch: int, length: int) -> PyTree:
        row_cache = init_cache(params, length)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, *jnp.shape(x))), row_cache)

    def rows(params: PyTree, tokens: jax.Array, cache: PyTree, starts: jax.Array) -> tuple[Any, Any]:
        logits, cache = jax.vmap(lambda row, row_cache_: apply(params, row[None], row_cache_))(tokens, cache)
        return logits[:, 0], cache

    return Model(empty, rows, prefill=1)


def logits_of(model: Model) -> Callable[[PyTree, Any], jax.Array]:
    """Return a function that computes whole rows at once, `(params, tokens) -> logits`.

    `tokens` are int32[B, T], and the logits of the next token at each position float32[B, T, V]. For an
    encoder-decoder they are a dictionary: `inputs`, int32[B, S]; `lengths`, int32[B], the number of tokens of
    each input; and `targets`, int32[B, T], which begin with the start token.

    Example:
      >>> model = mw.lm.without_cache(lambda params, tokens: params[tokens])  # a table of pairs
      >>> mw.lm.logits_of(model)(jnp.eye(4), jnp.array([[1, 2]])).shape
      (1, 2, 4)
    """

    def logits(params: PyTree, batch: Any) -> jax.Array:
        tokens = batch if model.encode is None else batch["targets"]
        B, T = tokens.shape
        cache, starts = model.init_cache(params, B, T), jnp.zeros(B, jnp.int32)
        if model.encode is not None:
            is_input = jnp.arange(batch["inputs"].shape[1]) < batch["lengths"][:, None]
            cache = model.encode(params, batch["inputs"], is_input, cache)
        if model.prefill > 1:
            return model.apply(params, tokens, cache, starts)[0].astype(jnp.float32)

        def step(carried: tuple[PyTree, jax.Array], token_B: jax.Array) -> tuple[Any, jax.Array]:
            cache, starts = carried
            logits_B1V, cache = model.apply(params, token_B[:, None], cache, starts)
            return (cache, starts + 1), logits_B1V[:, 0].astype(jnp.float32)

        return jax.lax.scan(step, (cache, starts), tokens.T)[1].swapaxes(0, 1)

    return logits


def vocabulary_of(model: Model, params: PyTree) -> int:
    """Return the number of tokens of a model."""
    return int(jax.eval_shape(_logits_of_one(model), params).shape[-1])


@functools.lru_cache(maxsize=32)
# The program is cached, as the server and each call of `generate` ask for the vocabulary of the same model.
def _logits_of_one(model: Model) -> Callable[[PyTree], jax.Array]:
    def logits(params: PyTree) -> jax.Array:
        cache = model.init_cache(params, 1, 8)
        if model.encode is not None:
            cache = model.encode(params, jnp.zeros((1, 8), jnp.int32), jnp.ones((1, 8), bool), cache)
        return model.apply(params, jnp.zeros((1, 1), jnp.int32), cache, jnp.zeros(1, jnp.int32))[0]

    return jax.jit(logits)


def check_tokens(name: str, tokens: Any, vocabulary: int) -> None:
    """Check that tokens are of a model."""
    if others := [x for x in np.ravel(tokens).tolist() if not 0 <= x < vocabulary]:
        raise UsageError(
            f"{name} has the token {others[0]}, but the model has {vocabulary}, from 0 on.\n"
            "  Is it of the tokenizer of another model?"
        )


def prompt_vocabulary(model: Model, params: PyTree, decoding: Decoding) -> int:
    """Return how many tokens prompts may be of, given how they are continued."""
    vocabulary = vocabulary_of(model, params)
    for name, rows in {"stop": decoding.stop, "choices": decoding.choices}.items():
        check_tokens(f"decoding.{name}", [*itertools.chain(*rows)], vocabulary)
    # The inputs of an encoder-decoder of the user's may have tokens of their own.
    return vocabulary if model.encode is None or model.config is not None else 2**31


def check_positions(model: Model, length: int) -> None:
    """Check that the model supports rows of this length."""
    if model.positions is not None and length > model.positions:
        raise UsageError(
            f"the longest prompt and what is generated have {length} tokens; the model has {model.positions} "
            "positions.\n  Give shorter prompts, or a smaller max_new_tokens."
        )
