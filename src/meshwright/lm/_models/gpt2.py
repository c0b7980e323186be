"""GPT-2 (Radford et al., 2019): plain functions on a plain tree, in one file, like `decoder`.

It has learned positions, layer norm, biases everywhere, and uses the embedding as its head.

Dimensions: B batch, T time, D model, N heads, H one head, F feed-forward, V vocabulary, L layers.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from meshwright.base._internal import PyTree, explained_as
from meshwright.errors import UsageError
from meshwright.lm._models import decoder
from meshwright.lm._models._config import check_sizes
from meshwright.lm._models._weights import next_token_weights
from meshwright.nn import _internal as nn
from meshwright.observe._internal import Mean
from meshwright.parallel._internal import (
    embedding_lookup,
    gather_sequence_dim,
    match,
    shard_sequence_dim,
    shard_tensor_dim,
)
from meshwright.training._internal import remat_policy


@explained_as("lm.gpt2.Config")
@dataclass(frozen=True)
class Config:
    """The sizes of the model. The defaults are those of the smallest model, of 124 million parameters.

    Raises:
      UsageError: The sizes do not fit together.
    """

    vocabulary: int = 50_257
    """The number of tokens in the vocabulary, V."""
    positions: int = 1024
    """The length of the longest row, in tokens."""
    model: int = 768
    """The number of features of the residual stream, D."""
    layers: int = 12
    """The number of layers, L."""
    heads: int = 12
    """The number of heads, N."""
    feed_forward: int = 3072
    """The number of hidden features of the feed-forward layer, F."""
    norm_epsilon: float = 1e-5
    """The number added to the variance in norms."""

    def __post_init__(self) -> None:
        check_sizes(self, "vocabulary", "positions", "model", "layers", "heads", "feed_forward")
        if self.model % self.heads:
            raise UsageError(f"Config.heads is {self.heads}, which does not divide model={self.model}.")


RULES = (
    match("positions", None, decoder.OUTSIDE),
    # Its 50,257 rows cannot be split evenly.
    match("embedding", None, decoder.OUTSIDE),
    *decoder.RULES,
)
"""The decoder's rules, and those for the arrays that it does not have."""


def init(cfg: Config, key: jax.Array, dtype: Any = jnp.float32) -> PyTree:
    """Return random parameters, nested dictionaries of arrays; those of layers are stacked, [L, ...].

    Args:
      cfg: The config of the model.
      key: A typed PRNG key.
      dtype: The dtype of the parameters.
    """
    keys = iter(jax.random.split(key, 8))

    def normal(*shape: int, deviation: float = 0.02) -> jax.Array:
        return jax.random.normal(next(keys), shape, dtype) * deviation

    L, D, F = cfg.layers, cfg.model, cfg.feed_forward
    # 2 L outputs are added to the residual stream, so each is narrower.
    narrow = 0.02 / (2 * L) ** 0.5
    ones = {"attention_norm": (L, D), "feed_forward_norm": (L, D)}
    zeros = {f"{name}_bias": (L, D) for name in (*ones, "q", "k", "v", "o", "down")} | {"up_bias": (L, F)}
    return {
        "embedding": normal(cfg.vocabulary, D),
        "positions": normal(cfg.positions, D, deviation=0.01),
        "layers": {
            "q": normal(L, D, D),
            "k": normal(L, D, D),
            "v": normal(L, D, D),
            "o": normal(L, D, D, deviation=narrow),
            "up": normal(L, D, F),
            "down": normal(L, F, D, deviation=narrow),
            **{name: jnp.ones(shape, dtype) for name, shape in ones.items()},
            **{name: jnp.zeros(shape, dtype) for name, shape in zeros.items()},
        },
        "norm": jnp.ones(D, dtype),
        "norm_bias": jnp.zeros(D, dtype),
    }


def logits(
    cfg: Config,
    params: PyTree,
    tokens_BT: jax.Array,
    segments_BT: jax.Array | None = None,
    positions_BT: jax.Array | None = None,
    *,
    remat: str = "everything",
) -> jax.Array:
    """Return the logits of the next token at each position, float32[B, T, V].

    Args:
      cfg: The config of the model.
      params: The parameters, as `init` returns them.
      tokens_BT: The tokens, int[B, T].
      segments_BT: The segment of each token, int[B, T], if rows are packed or padded: a position attends to
        its own segment only.
      positions_BT: The position of each token in its text, int[B, T]; by default counted from 0 in each
        segment.
      remat: The values that a layer keeps for the gradient, a policy of `mw.training.remat`.

    Raises:
      UsageError: T is larger than `cfg.positions`.
    """
    x_BTD = features(cfg, params, tokens_BT, segments_BT, positions_BT, remat=remat)
    return jnp.matmul(x_BTD, params["embedding"].T, preferred_element_type=jnp.float32)


def loss(
    cfg: Config,
    params: PyTree,
    batch: dict[str, jax.Array],
    *,
    remat: str = "everything",
    gather: Literal["once", "per chunk"] = "once",
) -> Mean:
    """Return the mean loss of a batch, in nats per token: each is predicted from those before it.

    Args:
      cfg: The config of the model.
      params: The parameters, as `init` returns them.
      batch: `{"tokens": int[B, T]}`; if rows are padded at their end, also `"is_token"`, bool[B, T]. Packed
        rows have `"segments"`, int[B, T], numbered from 1, where 0 is padding, and maybe `"positions"`,
        int[B, T]. With `"weights"`, [B, T], each token counts by its weight: sum(weight * loss) /
        sum(weight).
      remat: As in `logits`.
      gather: How often the head is gathered under `fsdp`, as in `mw.nn.cross_entropy`.

    Raises:
      UsageError: T - 1 is larger than `cfg.positions`.
    """
    inputs = {name: batch[name][:, :-1] for name in ("tokens", "segments", "positions") if name in batch}
    packed = inputs.get("segments"), inputs.get("positions")
    x_BTD = features(cfg, params, inputs["tokens"], *packed, remat=remat)
    with jax.named_scope("head"):
        return nn.cross_entropy(
            x_BTD,
            params["embedding"].T,
            batch["tokens"][:, 1:],
            label_weights=next_token_weights(batch),
            gather=gather,
        )


def losses(
    cfg: Config,
    params: PyTree,
    tokens_BT: jax.Array,
    segments_BT: jax.Array | None = None,
    *,
    remat: str = "everything",
) -> jax.Array:
    """Return the loss of each token but the first, in nats: float32[B, T - 1].

    For evaluation; to train, take `loss`, whose gradient computes no logits a second time. The arguments and
    errors are those of `logits`.
    """
    segments_before = None if segments_BT is None else segments_BT[:, :-1]
    x_BTD = features(cfg, params, tokens_BT[:, :-1], segments_before, remat=remat)
    return nn.token_losses(x_BTD, params["embedding"].T, tokens_BT[:, 1:])


def features(
    cfg: Config,
    params: PyTree,
    tokens_BT: jax.Array,
    segments_BT: jax.Array | None = None,
    positions_BT: jax.Array | None = None,
    *,
    remat: str = "everything",
) -> jax.Array:
    """Return the features before the head at each position, [B, T, D], in the dtype of the parameters.

    The arguments and errors are those of `logits`.
    """
    length = tokens_BT.shape[1]
    if length > cfg.positions:
        raise UsageError(f"rows of {length} tokens are too long: the model has {cfg.positions} positions.")

    def layer_step(layer: PyTree, x_BTD: jax.Array) -> jax.Array:
        return shard_sequence_dim(block(cfg, layer, x_BTD, segments_BT))

    layer_step = jax.checkpoint(layer_step, policy=remat_policy(remat), prevent_cse=False)
    # The scopes are the rows of `meshwright trace`.
    with jax.named_scope("embedding"):
        position_embedding = params["positions"]
        if segments_BT is not None and positions_BT is None:
            positions_BT = _in_segments(segments_BT)
        position_embedding = (
            position_embedding[:length]
            if positions_BT is None
            else embedding_lookup(position_embedding, positions_BT)
        )
        x_BTD = shard_sequence_dim(embedding_lookup(params["embedding"], tokens_BT) + position_embedding)
    with jax.named_scope("layers"):
        x_BTD = nn.layers(layer_step, params["layers"], x_BTD)
    return layer_norm(cfg, x_BTD, params, "norm")


def _in_segments(segments_BT: jax.Array) -> jax.Array:
    """Return the position of each token in its segment, from 0, int32[B, T]."""
    index = jnp.arange(segments_BT.shape[1])
    is_first = jnp.diff(segments_BT, axis=1, prepend=-1) != 0
    return index - jax.lax.cummax(jnp.where(is_first, index, 0), axis=1)


def block(
    cfg: Config,
    layer: PyTree,
    x_BTD: jax.Array,
    segments_BT: jax.Array | None = None,
    cached: nn.CachedAttention | None = None,
) -> jax.Array:
    """Return the output of a layer: attention, then feed-forward, each with a residual connection.

    Args:
      cfg: The config of the model.
      layer: The parameters of one layer, without the first dimension of `params["layers"]`.
      x_BTD: The input of the layer.
      segments_BT: Positions attend to their own segment only; None for one segment.
      cached: The attention to a cache; None for whole rows.
    """
    with jax.named_scope("attention"):
        normed_BTD = gather_sequence_dim(layer_norm(cfg, x_BTD, layer, "attention_norm"))
        x_BTD = x_BTD + shard_sequence_dim(attention(cfg, layer, normed_BTD, segments_BT, cached))
    with jax.named_scope("feed_forward"):
        normed_BTD = gather_sequence_dim(layer_norm(cfg, x_BTD, layer, "feed_forward_norm"))
        hidden_BTF = jax.nn.gelu(shard_tensor_dim(dense(layer, "up", normed_BTD)))
        return x_BTD + shard_sequence_dim(dense(layer, "down", shard_tensor_dim(hidden_BTF)))


def attention(
    cfg: Config,
    layer: PyTree,
    x_BTD: jax.Array,
    segments_BT: jax.Array | None = None,
    cached: nn.CachedAttention | None = None,
) -> jax.Array:
    """Return the output of causal attention with all heads, [B, T, D]; the arguments are those of `block`."""
    q_BTNH, k_BTNH, v_BTNH = (
        shard_tensor_dim(dense(layer, name, x_BTD).reshape(*x_BTD.shape[:2], cfg.heads, -1)) for name in "qkv"
    )
    attend = nn.attention if cached is None else cached
    out_BTNH = shard_tensor_dim(attend(q_BTNH, k_BTNH, v_BTNH, causal=True, segments=segments_BT))
    return dense(layer, "o", out_BTNH.reshape(x_BTD.shape))


def dense(layer: PyTree, name: str, x: jax.Array) -> jax.Array:
    """Multiply by a weight and add its bias."""
    return x @ layer[name] + layer[f"{name}_bias"]


def layer_norm(cfg: Config, x: jax.Array, params: PyTree, name: str) -> jax.Array:
    """Normalise to mean 0 and variance 1 over the last dimension, scale and shift, in float32."""
    wide = x.astype(jnp.float32)
    wide -= wide.mean(-1, keepdims=True)
    wide *= jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + cfg.norm_epsilon)
    scale, shift = (params[key].astype(jnp.float32) for key in (name, f"{name}_bias"))
    return (wide * scale + shift).astype(x.dtype)
