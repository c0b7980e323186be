"""The reference models with a cache, as `mw.lm.generate` calls them."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from meshwright.base._internal import PyTree
from meshwright.errors import UsageError
from meshwright.lm._generation._model import Model
from meshwright.lm._models import decoder, gpt2, t5
from meshwright.nn import _internal as nn
from meshwright.parallel._internal import embedding_lookup, shard_tensor_dim

Config = decoder.Config | gpt2.Config | t5.Config


@functools.lru_cache(maxsize=64)
def with_cache(cfg: Config) -> Model:
    """Return a reference model with a cache of keys and values, for `mw.lm.generate`.

    Args:
      cfg: The config of the model: of `decoder`, `gpt2` or `t5`, whose prompts are its inputs.

    Raises:
      UsageError: It is none of these.

    Example:
      >>> cfg = mw.lm.decoder.Config(vocabulary=16, model=8, layers=2, heads=2, feed_forward=16)
      >>> params = mw.lm.decoder.init(cfg, mw.training.key_of(0))
      >>> [row] = mw.lm.generate(mw.lm.with_cache(cfg), params, [[1, 2, 3]], mw.lm.Decoding(max_new_tokens=4))
      >>> row.shape
      (4,)
    """
    for kind, make in _MODELS.items():
        if isinstance(cfg, kind):
            return replace(make(cfg), config=cfg)
    raise UsageError(
        f"with_cache takes the config of a reference model; found {type(cfg).__name__}.\n"
        "  For a model of your own, make a mw.lm.Model, or mw.lm.without_cache(logits)."
    )


def _decoder(cfg: decoder.Config) -> Model:
    # How rows are padded must not change the tokens that are generated.
    cfg = replace(cfg, expert_capacity=None)

    def apply(params: PyTree, tokens: jax.Array, cache: PyTree, starts: jax.Array) -> tuple[Any, Any]:
        def layer(x: jax.Array, inputs: Any, cached: nn.CachedAttention) -> jax.Array:
            weights, frequencies, window = inputs
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
            return gpt2.block(cfg, weights, x, cached=cached)

        positions = starts[:, None] + jnp.arange(tokens.shape[1])
        x = embedding_lookup(params["embedding"], tokens) + params["positions"][positions]
        x, cache = _through(layer, x, params["layers"], cache, starts)
        x = gpt2.layer_norm(cfg, x, params, "norm")
        return jnp.matmul(x, params["embedding"].T, preferred_element_type=jnp.float32), cache

    return Model(_empty(cfg.layers, cfg.heads, cfg.model // cfg.heads), apply, positions=cfg.positions)


class T5Cache(NamedTuple):
    """The cache of T5's decoder, and what it attends to in the inputs, of length 0 before `encode`."""

    targets: nn.KeyValueCache
    inputs: nn.KeyValueCache
    is_input: jax.Array


def _t5(cfg: t5.Config) -> Model:
    empty = _empty(cfg.decoder_layers, cfg.heads, cfg.head)

    def init_cache(params: PyTree, batch: int, length: int) -> T5Cache:
        return T5Cache(empty(params, batch, length), empty(params, batch, 0), jnp.zeros((batch, 0), bool))

    def encode(params: PyTree, inputs: jax.Array, is_input: jax.Array, cache: T5Cache) -> T5Cache:
        encoded = t5.encode(cfg, params, inputs, is_input)
        layers = params["decoder"]["layers"]

        def all_layers(name: str) -> jax.Array:
            by_layer = jax.vmap(lambda weight: (encoded @ weight).reshape(*encoded.shape[:2], cfg.heads, -1))
            return shard_tensor_dim(by_layer(layers[name]).transpose(1, 0, 3, 2, 4))

        cross_attention = nn.KeyValueCache(all_layers("cross_k"), all_layers("cross_v"))
        return cache._replace(inputs=cross_attention, is_input=is_input)

    def apply(params: PyTree, tokens: jax.Array, cache: T5Cache, starts: jax.Array) -> tuple[Any, Any]:
        stack, segments = params["decoder"], t5.inputs_only(tokens.shape[1], cache.is_input)
        bias_of = t5.position_biases(cfg, stack, bidirectional=False)

        def layer(x: jax.Array, inputs: Any, cached: nn.CachedAttention) -> jax.Array:
            weights, (keys, values) = inputs
            normed = t5.rms_norm(cfg, x, weights["attention_norm"])
            bias = bias_of(weights)
            x = x + t5.attention(cfg, weights, "", normed, normed, bias=bias, causal=True, cached=cached)
            q = t5.heads(cfg, weights["cross_q"], t5.rms_norm(cfg, x, weights["cross_attention_norm"]))
            k, v = keys.swapaxes(1, 2), values.swapaxes(1, 2)
            x = x + t5.merged(weights["cross_o"], nn.attention(q, k, v, segments=segments, scale=1.0))
            return x + t5.feed_forward(cfg, weights, x)

        x, layers = embedding_lookup(params["embedding"], tokens), stack["layers"]
        cross_attention = jax.tree.map(lambda x: x.swapaxes(0, 1), tuple(cache.inputs))
        x, targets = _through(layer, x, (layers, cross_attention), cache.targets, starts)
        x = t5.rms_norm(cfg, x, stack["norm"])
        logits = jnp.matmul(x, t5.head(cfg, params), preferred_element_type=jnp.float32)
        return logits, cache._replace(targets=targets)

    return Model(init_cache, apply, encode)


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

    def step(
        carried: tuple[jax.Array, nn.KeyValueCache], numbered_layer: tuple[jax.Array, Any]
    ) -> tuple[Any, None]:
        (x_BTD, cache), (number, weights) = carried, numbered_layer
        cached = nn.CachedAttention(cache, number, starts_B, x_BTD.shape[1])
        x_BTD = layer(x_BTD, weights, cached)
        return (x_BTD, cached.cache), None

    numbers = jnp.arange(cache.keys.shape[1])
    (x_BTD, cache), _ = jax.lax.scan(step, (x_BTD, cache), (numbers, layers))
    return x_BTD, cache


_MODELS: dict[type, Callable[[Any], Model]] = {decoder.Config: _decoder, gpt2.Config: _gpt2, t5.Config: _t5}
