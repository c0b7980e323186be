"""T5 (Raffel et al., 2020), the first version, v1.1 and UMT5: plain functions on a plain tree, in one file.

The encoder attends to all inputs; the decoder attends to the targets before it and to all encoded inputs.
Positions are buckets of distances, with a bias for each head, which all layers of a stack share. Attention
scores are not scaled, which the initialisation compensates. v1.1 has GeGLU instead of ReLU, and a separate
head; in UMT5, each layer has its own bias, too.

Dimensions: B batch, S inputs, T targets, D model, N heads, H one head, F feed-forward, V vocabulary,
L layers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.base._internal import PyTree, explained_as
from meshwright.errors import UsageError
from meshwright.lm._models import decoder
from meshwright.lm._models._config import check_sizes
from meshwright.lm._models._weights import label_weights
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


@explained_as("lm.t5.Config")
@dataclass(frozen=True)
class Config:
    """The sizes of the model. The defaults are those of T5 1.1 small, of 77 million parameters.

    Raises:
      UsageError: The sizes do not fit together.
    """

    vocabulary: int = 32_128
    """The number of tokens in the vocabulary, V."""
    model: int = 512
    """The number of features of the residual stream, D."""
    layers: int = 8
    """The number of layers of the encoder."""
    decoder_layers: int = 8
    """The number of layers of the decoder."""
    heads: int = 6
    """The number of heads, N."""
    head: int = 64
    """The size of a head, H."""
    feed_forward: int = 1024
    """The number of hidden features of the feed-forward layer, F."""
    gated: bool = True
    """True for GeGLU with the tanh approximation; False for ReLU, as in the first T5."""
    tied: bool = False
    """True if the head is the embedding divided by the square root of the model size."""
    buckets: int = 32
    """The number of buckets of distances."""
    max_distance: int = 128
    """The distance from which on all distances share a bucket."""
    shared_bias: bool = True
    """True if all layers of a stack share one bias of positions; False if each has its own, as in UMT5."""
    norm_epsilon: float = 1e-6
    """The number added to the mean square in norms."""

    def __post_init__(self) -> None:
        check_sizes(self, "vocabulary", "model", "layers", "decoder_layers", "heads", "head", "feed_forward")
        if self.buckets < 4 or self.buckets % 2 or self.max_distance <= self.buckets // 2:
            raise UsageError(
                f"Config.buckets is {self.buckets} and Config.max_distance is {self.max_distance}; buckets "
                "must be even and at least 4, and max_distance larger than half of them."
            )


RULES = (
    match("cross_[qkv]", decoder.STACKED, *decoder.COLUMNS),
    match("cross_o", decoder.STACKED, *decoder.ROWS),
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
    embedding, encoder, targets, head = jax.random.split(key, 4)
    D, V = cfg.model, cfg.vocabulary
    params = {
        "embedding": jax.random.normal(embedding, (V, D), dtype),
        "encoder": _stack(cfg, encoder, cfg.layers, ("",), dtype),
        "decoder": _stack(cfg, targets, cfg.decoder_layers, ("", "cross_"), dtype),
    }
    return params if cfg.tied else params | {"head": jax.random.normal(head, (D, V), dtype) / D**0.5}


def _stack(cfg: Config, key: jax.Array, L: int, attentions: tuple[str, ...], dtype: Any) -> PyTree:
    """Return the parameters of an encoder, or of a decoder, which also has `cross_` attention."""
    D, F, inner = cfg.model, cfg.feed_forward, cfg.heads * cfg.head
    weights = {"up": (D, F), "down": (F, D)} | ({"gate": (D, F)} if cfg.gated else {})
    for prefix in attentions:
        weights |= {f"{prefix}{name}": (D, inner) for name in "qkv"} | {f"{prefix}o": (inner, D)}
    norms = ["feed_forward_norm", *(f"{prefix}attention_norm" for prefix in attentions)]
    *keys, last = jax.random.split(key, len(weights) + 1)

    def deviation(name: str) -> float:
        return weights[name][0] ** -0.5 * (cfg.head**-0.5 if name.endswith("q") else 1)

    table = (cfg.buckets, cfg.heads) if cfg.shared_bias else (L, cfg.buckets, cfg.heads)
    bias = {"position_bias": jax.random.normal(last, table, dtype) / D**0.5}
    return {
        **(bias if cfg.shared_bias else {}),
        "layers": {
            **({} if cfg.shared_bias else bias),
            **{
                name: jax.random.normal(key, (L, *shape), dtype) * deviation(name)
                for key, (name, shape) in zip(keys, weights.items(), strict=True)
            },
            **{name: jnp.ones((L, D), dtype) for name in norms},
        },
        "norm": jnp.ones(D, dtype),
    }


def logits(
    cfg: Config,
    params: PyTree,
    inputs_BS: jax.Array,
    targets_BT: jax.Array,
    is_input_BS: jax.Array | None = None,
    *,
    remat: str = "everything",
) -> jax.Array:
    """Return the logits of the next target at each position, float32[B, T, V].

    Args:
      cfg: The config of the model.
      params: The parameters, as `init` returns them.
      inputs_BS: The input tokens, int[B, S].
      targets_BT: The target tokens, int[B, T], which begin with the start token; T5's is 0.
      is_input_BS: True for inputs and False for padding, bool[B, S]; None if there is no padding.
      remat: The values that a layer keeps for the gradient, a policy of `mw.training.remat`.
    """
    encoded_BSD = encode(cfg, params, inputs_BS, is_input_BS, remat=remat)
    x_BTD = decode(cfg, params, targets_BT, encoded_BSD, is_input_BS, remat=remat)
    return jnp.matmul(x_BTD, head(cfg, params), preferred_element_type=jnp.float32)


def loss(
    cfg: Config,
    params: PyTree,
    batch: dict[str, jax.Array],
    *,
    remat: str = "everything",
    gather: Literal["once", "per chunk"] = "once",
) -> Mean:
    """Return the mean loss of a batch, in nats per target, given the inputs and the targets before it.

    Args:
      cfg: The config of the model.
      params: The parameters, as `init` returns them.
      batch: `{"inputs": int[B, S], "targets": int[B, T]}`, the targets without a start token; if rows are
        padded at their end, also `"is_input"`, bool[B, S], and `"is_target"`, bool[B, T]. With `"weights"`,
        [B, T], each target counts by its weight: sum(weight * loss) / sum(weight).
      remat: As in `logits`.
      gather: How often the head is gathered under `fsdp`, as in `mw.nn.cross_entropy`.

    Raises:
      UsageError: The batch has packed rows, of several texts each, which would attend to each other.
    """
    if packed := [name for name in batch if "segment" in name or "position" in name]:
        raise UsageError(
            f"t5.loss: the batch has {', '.join(packed)}, but T5 takes one text in each row here.\n"
            "  Give rows of one text, padded, with is_input and is_target."
        )
    x_BTD = _features_before(cfg, params, batch, remat)
    weights = label_weights(batch.get("is_target"), batch.get("weights"))
    with jax.named_scope("head"):
        return nn.cross_entropy(
            x_BTD, head(cfg, params), batch["targets"], label_weights=weights, gather=gather
        )


def losses(
    cfg: Config, params: PyTree, batch: dict[str, jax.Array], *, remat: str = "everything"
) -> jax.Array:
    """Return the loss of each target, in nats: float32[B, T].

    For evaluation; to train, take `loss`, whose gradient computes no logits a second time.

    Args:
      cfg: The config of the model.
      params: The parameters, as `init` returns them.
      batch: As in `loss`.
      remat: As in `logits`.
    """
    x_BTD = _features_before(cfg, params, batch, remat)
    return nn.token_losses(x_BTD, head(cfg, params), batch["targets"])


def _features_before(cfg: Config, params: PyTree, batch: dict[str, jax.Array], remat: str) -> jax.Array:
    """Return the features that each target is predicted from, [B, T, D]."""
    encoded_BSD = encode(cfg, params, batch["inputs"], batch.get("is_input"), remat=remat)
    # The start token of T5 is 0.
    before_BT = jnp.pad(batch["targets"][:, :-1], ((0, 0), (1, 0)))
    return decode(cfg, params, before_BT, encoded_BSD, batch.get("is_input"), remat=remat)


def head(cfg: Config, params: PyTree) -> jax.Array:
    """Return the weights from features to logits, [D, V]."""
    return params["embedding"].T * cfg.model**-0.5 if cfg.tied else params["head"]


def encode(
    cfg: Config,
    params: PyTree,
    inputs_BS: jax.Array,
    is_input_BS: jax.Array | None = None,
    *,
    remat: str = "everything",
) -> jax.Array:
    """Return the encoded inputs, [B, S, D], in the parameters' dtype; the arguments are as in `logits`."""
    stack, segments = params["encoder"], inputs_only(inputs_BS.shape[1], is_input_BS)
    bias_of = position_biases(cfg, stack, bidirectional=True)

    def layer_step(layer: PyTree, x_BSD: jax.Array) -> jax.Array:
        with jax.named_scope("attention"):
            normed_BSD = gather_sequence_dim(rms_norm(cfg, x_BSD, layer["attention_norm"]))
            x_BSD = x_BSD + attention(
                cfg, layer, "", normed_BSD, normed_BSD, bias=bias_of(layer), segments=segments
            )
        with jax.named_scope("feed_forward"):
            return x_BSD + feed_forward(cfg, layer, x_BSD)

    layer_step = jax.checkpoint(layer_step, policy=remat_policy(remat), prevent_cse=False)
    # The scopes are the rows of `meshwright trace`.
    with jax.named_scope("embedding"):
        x_BSD = shard_sequence_dim(embedding_lookup(params["embedding"], inputs_BS))
    with jax.named_scope("encoder"):
        x_BSD = nn.layers(layer_step, stack["layers"], x_BSD)
    return gather_sequence_dim(rms_norm(cfg, x_BSD, stack["norm"]))


def decode(
    cfg: Config,
    params: PyTree,
    targets_BT: jax.Array,
    encoded_BSD: jax.Array,
    is_input_BS: jax.Array | None = None,
    *,
    remat: str = "everything",
) -> jax.Array:
    """Return the features before the head, [B, T, D]; `encoded_BSD` is the result of `encode`."""
    stack, segments = params["decoder"], inputs_only(targets_BT.shape[1], is_input_BS)
    bias_of = position_biases(cfg, stack, bidirectional=False)

    def layer_step(layer: PyTree, x_BTD: jax.Array) -> jax.Array:
        with jax.named_scope("attention"):
            normed_BTD = gather_sequence_dim(rms_norm(cfg, x_BTD, layer["attention_norm"]))
            x_BTD = x_BTD + attention(
                cfg, layer, "", normed_BTD, normed_BTD, bias=bias_of(layer), causal=True
            )
        with jax.named_scope("cross_attention"):
            normed_BTD = gather_sequence_dim(rms_norm(cfg, x_BTD, layer["cross_attention_norm"]))
            x_BTD = x_BTD + attention(cfg, layer, "cross_", normed_BTD, encoded_BSD, segments=segments)
        with jax.named_scope("feed_forward"):
            return x_BTD + feed_forward(cfg, layer, x_BTD)

    layer_step = jax.checkpoint(layer_step, policy=remat_policy(remat), prevent_cse=False)
    # The scopes are the rows of `meshwright trace`.
    with jax.named_scope("embedding"):
        x_BTD = shard_sequence_dim(embedding_lookup(params["embedding"], targets_BT))
    with jax.named_scope("decoder"):
        x_BTD = nn.layers(layer_step, stack["layers"], x_BTD)
    return rms_norm(cfg, x_BTD, stack["norm"])


def attention(
    cfg: Config,
    layer: PyTree,
    prefix: str,
    x_BTD: jax.Array,
    attended_BSD: jax.Array,
    *,
    bias: nn.Bias | None = None,
    causal: bool = False,
    segments: tuple[jax.Array, jax.Array] | None = None,
    cached: nn.CachedAttention | None = None,
) -> jax.Array:
    """Return the output of attention with all heads, [B, T, D].

    Args:
      cfg: The config of the model.
      layer: The parameters of one layer.
      prefix: The beginning of the names of the weights: empty, or `cross_`.
      x_BTD: The input, which makes the queries.
      attended_BSD: What makes keys and values.
      bias: The bias of the scores, as in `mw.nn.attention`.
      causal: If true, a query sees no later keys.
      segments: The segments of queries and keys.
      cached: The attention to a cache; None for whole rows.
    """
    q_BTNH = heads(cfg, layer[f"{prefix}q"], x_BTD)
    k_BSNH, v_BSNH = (heads(cfg, layer[f"{prefix}{name}"], attended_BSD) for name in "kv")
    attend = nn.attention if cached is None else cached
    out_BTNH = attend(q_BTNH, k_BSNH, v_BSNH, causal=causal, segments=segments, bias=bias, scale=1.0)
    return merged(layer[f"{prefix}o"], out_BTNH)


def heads(cfg: Config, weight: jax.Array, x: jax.Array) -> jax.Array:
    """Return queries, keys or values of all heads, [B, T, N, H]."""
    return shard_tensor_dim((x @ weight).reshape(*x.shape[:2], cfg.heads, cfg.head))


def merged(weight: jax.Array, out_BTNH: jax.Array) -> jax.Array:
    """Return the features, [B, T, D], of what all heads attended to."""
    out_BTNH = shard_tensor_dim(out_BTNH)
    return shard_sequence_dim(out_BTNH.reshape(*out_BTNH.shape[:2], -1) @ weight)


def inputs_only(length: int, is_input_BS: jax.Array | None) -> tuple[jax.Array, jax.Array] | None:
    """Return segments in which all of `length` queries see the inputs, and none the padding."""
    if is_input_BS is None:
        return None
    return jnp.ones((is_input_BS.shape[0], length), jnp.int32), jnp.asarray(is_input_BS, jnp.int32)


def feed_forward(cfg: Config, layer: PyTree, x_BTD: jax.Array) -> jax.Array:
    """Return the output of the feed-forward layer, [B, T, D]: norm, then GeGLU or ReLU."""
    x_BTD = gather_sequence_dim(rms_norm(cfg, x_BTD, layer["feed_forward_norm"]))
    up_BTF = shard_tensor_dim(x_BTD @ layer["up"])
    if cfg.gated:
        hidden_BTF = jax.nn.gelu(shard_tensor_dim(x_BTD @ layer["gate"])) * up_BTF
    else:
        hidden_BTF = jax.nn.relu(up_BTF)
    return shard_sequence_dim(shard_tensor_dim(hidden_BTF) @ layer["down"])


def position_biases(cfg: Config, stack: PyTree, *, bidirectional: bool) -> Callable[[PyTree], nn.Bias]:
    """Return a function from the parameters of a layer to the bias of its attention scores."""
    if not cfg.shared_bias:
        return lambda layer: position_bias(cfg, layer["position_bias"], bidirectional=bidirectional)
    shared = position_bias(cfg, stack["position_bias"], bidirectional=bidirectional)
    return lambda layer: shared


def position_bias(cfg: Config, table: jax.Array, *, bidirectional: bool) -> nn.Bias:
    """Return the bias of attention scores by the bucket of each distance, given a table [buckets, N]."""
    # All distances beyond the farthest share its bucket.
    farthest = cfg.max_distance
    buckets = bucket(cfg, np.arange(-farthest, farthest + 1), bidirectional=bidirectional)

    def scores_of(by_distance: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        return by_distance[:, jnp.clip(s - t[:, None], -farthest, farthest) + farthest]

    return nn.Bias(scores_of, table[buckets].T)


def bucket(cfg: Config, distance: np.ndarray, *, bidirectional: bool) -> np.ndarray:
    """Return the bucket of each distance; a distance is positive if the position attended to comes later.

    Half of the buckets are for one distance each; the others grow logarithmically up to `max_distance`. With
    `bidirectional`, each direction has half of the buckets. Otherwise later positions, which are masked,
    share bucket 0.
    """
    count = cfg.buckets // 2 if bidirectional else cfg.buckets
    first = np.where(distance > 0, count, 0) if bidirectional else 0
    far = np.abs(distance) if bidirectional else np.maximum(-distance, 0)
    exact = count // 2
    growing = np.log(np.maximum(far, 1) / exact) / math.log(cfg.max_distance / exact) * (count - exact)
    return first + np.where(far < exact, far, np.minimum(exact + growing.astype(int), count - 1))


def rms_norm(cfg: Config, x: jax.Array, scale: jax.Array) -> jax.Array:
    """Divide by the root of the mean square over the last dimension and scale, in float32."""
    wide = x.astype(jnp.float32)
    wide *= jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + cfg.norm_epsilon)
    return (wide * scale.astype(jnp.float32)).astype(x.dtype)
