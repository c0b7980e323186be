"""The reference models with a cache, as `mw.generate` calls them."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from meshwright import nn
from meshwright.errors import UsageError
from meshwright.generation import Model
from meshwright.models import decoder, gpt2
from meshwright.sharding import embedding_lookup
from meshwright.tree import PyTree

Config = decoder.Config | gpt2.Config


@functools.lru_cache(maxsize=64)
def with_cache(cfg: Config) -> Model:
    """Return a reference model with a cache of keys and values, for `mw.generate`.

    Args:
      cfg: The config of the model: a `decoder.Config` or a `gpt2.Config`.

    Raises:
      UsageError: It is none of these.

    Example:
      >>> cfg = mw.models.decoder.Config(vocabulary=16, model=8, layers=2, heads=2, feed_forward=16)
      >>> params = mw.models.decoder.init(cfg, mw.train.key_of(0))
      >>> [row] = mw.generate(mw.models.with_cache(cfg), params, [[1, 2, 3]], mw.Decoding(max_new_tokens=4))
      >>> row.shape
      (4,)
    """
    for kind, made in _MODELS.items():
        if isinstance(cfg, kind):
            return made(cfg)
    raise UsageError(
        f"with_cache takes the config of a reference model; found {type(cfg).__name__}.\n"
        "  For a model of your own, make a mw.generation.Model, or mw.generation.without_cache(logits)."
    )


def _decoder(cfg: decoder.Config) -> Model:
    def apply(params: PyTree, tokens: jax.Array, cache: PyTree, starts: jax.Array) -> tuple[Any, Any]:
        def layer(x: jax.Array, given: Any, cached: nn.CachedAttention) -> jax.Array:
            weights, frequencies, window = given
            return decoder.block(cfg, weights, x, frequencies, window, cached=cached)

        x = embedding_lookup(params["embedding"], tokens)
        x = x * jnp.asarray(cfg.embedding_scale, x.dtype)
        layers = params["layers"], cfg.layer_frequencies(), cfg.layer_windows()
        x, cache = _through(layer, x, layers, cache, starts)
        return decoder.scores(cfg, params, decoder.rms_norm(cfg, x, params["norm"])), cache

    return Model(_empty(cfg.layers, cfg.num_key_heads, cfg.head_size), apply)


def _gpt2(cfg: gpt2.Config) -> Model:
    def apply(params: PyTree, tokens: jax.Array, cache: PyTree, starts: jax.Array) -> tuple[Any, Any]:
        def layer(x: jax.Array, weights: PyTree, cached: nn.CachedAttention) -> jax.Array:
            return gpt2.block(cfg, weights, x, cached)

        positions = starts[:, None] + jnp.arange(tokens.shape[1])  # beyond the last one only for padding
        x = embedding_lookup(params["embedding"], tokens)
        x = x + params["positions"].at[positions].get(mode="clip")
        x, cache = _through(layer, x, params["layers"], cache, starts)
        x = gpt2.layer_norm(cfg, x, params, "norm")
        return jnp.matmul(x, params["embedding"].T, preferred_element_type=jnp.float32), cache

    return Model(_empty(cfg.layers, cfg.heads, cfg.model // cfg.heads), apply, positions=cfg.positions)


def _empty(layers: int, heads: int, head_size: int) -> Callable[[PyTree, int, int], nn.KeyValueCache]:
    """Return the function that makes the empty cache, in the dtype of the embedding."""

    def init_cache(params: PyTree, batch: int, length: int) -> nn.KeyValueCache:
        sizes = {"batch": batch, "layers": layers, "heads": heads, "length": length, "head_size": head_size}
        return nn.KeyValueCache.zeros(**sizes, dtype=params["embedding"].dtype)

    return init_cache


def _through(
    layer: Callable[[jax.Array, Any, nn.CachedAttention], jax.Array],
    x_BTD: jax.Array,
    layers: PyTree,
    cache: nn.KeyValueCache,
    starts_B: jax.Array,
) -> tuple[jax.Array, nn.KeyValueCache]:
    """Return the output of all layers, and the cache. The cache is carried, so that it changes in place."""

    def one(carried: tuple[jax.Array, nn.KeyValueCache], given: tuple[jax.Array, Any]) -> tuple[Any, None]:
        (x_BTD, cache), (number, weights) = carried, given
        cached = nn.CachedAttention(cache, number, starts_B, x_BTD.shape[1])
        x_BTD = layer(x_BTD, weights, cached)
        return (x_BTD, cached.cache), None

    numbers = jnp.arange(cache.keys.shape[1])
    (x_BTD, cache), _ = jax.lax.scan(one, (x_BTD, cache), (numbers, layers))
    return x_BTD, cache


_MODELS: dict[type, Callable[[Any], Model]] = {decoder.Config: _decoder, gpt2.Config: _gpt2}
