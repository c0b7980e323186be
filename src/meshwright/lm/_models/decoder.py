"""The decoder-only transformer of LLaMA and similar models: plain functions on a plain tree, in one file.

Pre-norm blocks with RMS norm (Zhang and Sennrich, 2019), rotary positions (Su et al., 2021), grouped
queries (Ainslie et al., 2023) and a gated feed-forward layer (Shazeer, 2020), or a mixture of these. Each
feature of Mistral, Mixtral, Qwen and Gemma is a field of `Config`. The layers' weights are stacked along a
first dimension and scanned over, so that compiling takes as long for eighty layers as for one.

It computes in the dtype of the parameters (`mw.make_step(compute_dtype="bfloat16")`); norms, rotary angles,
the softmax and the logits are always float32.

Dimensions: B batch, T time (S for positions that are attended to), D model, N heads, G key and value heads, H
one head, F feed-forward, V vocabulary, L layers.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from meshwright.base._internal import PyTree, optional
from meshwright.errors import UsageError
from meshwright.lm._models._config import Config, Rope, config
from meshwright.lm._models._mixture import ACTIVATIONS, feed_forward_weights, mixture, with_balance
from meshwright.lm._models._weights import next_token_weights
from meshwright.nn import _internal as nn
from meshwright.observe._internal import Mean
from meshwright.parallel._internal import (
    embedding_lookup,
    gather_sequence_dim,
    match,
    shard_sequence_dim,
    shard_tensor_dim,
    stages,
)
from meshwright.training._internal import remat_policy

__all__ = [
    "RULES",
    "Config",
    "Rope",
    "attention",
    "block",
    "config",
    "features",
    "feed_forward",
    "init",
    "logits",
    "loss",
    "loss_and_routing",
    "losses",
]

_Routed = tuple[jax.Array, nn.Routing | None]

COLUMNS, ROWS = ("fsdp", "tensor"), ("tensor", "fsdp")
STACKED, OUTSIDE = "pipeline", ("fsdp", "pipeline")
RULES = (
    match(optional("experts/(gate|up)"), STACKED, "expert", *COLUMNS),
    match(optional("experts/down"), STACKED, "expert", *ROWS),
    match("q|k|v|gate|up", STACKED, *COLUMNS),
    match("o|down", STACKED, *ROWS),
    match(optional("([qkv]|up)_bias"), STACKED, "tensor"),
    stages(),
    # GPT-2 has a rule of its own for the embedding.
    match(optional("embedding"), "tensor", OUTSIDE),
    match(optional("head"), OUTSIDE, "tensor"),
)
"""Megatron's rules: columns in, rows out, so that a block needs one sum over the tensor axis at its end.
Layers are split over `pipeline` into stages. The other parameters are split over it as over `fsdp`."""


def init(cfg: Config, key: jax.Array, dtype: Any = jnp.float32) -> PyTree:
    """Return random parameters, nested dictionaries of arrays; those of layers are stacked, [L, ...].

    Args:
      cfg: The config of the model.
      key: A typed PRNG key.
      dtype: The dtype of the parameters.

    Example:
      >>> cfg = mw.lm.decoder.Config(vocabulary=10, model=8, layers=2, heads=2, feed_forward=16)
      >>> params = mw.lm.decoder.init(cfg, mw.training.key_of(0))
      >>> params["embedding"].shape, params["layers"]["q"].shape
      ((10, 8), (2, 8, 8))
    """
    keys = iter(jax.random.split(key, 9 if cfg.experts is None else 10))

    def normal(*shape: int, fan_in: float) -> jax.Array:
        return jax.random.normal(next(keys), shape, dtype) / fan_in**0.5

    def norm(*shape: int) -> jax.Array:
        return jnp.full(shape, 1 - cfg.norm_offset, dtype)

    L, D, V = cfg.layers, cfg.model, cfg.vocabulary
    queries, shared = cfg.heads * cfg.head_size, cfg.num_key_heads * cfg.head_size
    params = {
        "embedding": normal(V, D, fan_in=D),
        "layers": {
            "attention_norm": norm(L, D),
            "q": normal(L, D, queries, fan_in=D),
            "k": normal(L, D, shared, fan_in=D),
            "v": normal(L, D, shared, fan_in=D),
            "o": normal(L, queries, D, fan_in=queries * 2 * L),
            "feed_forward_norm": norm(L, D),
            **feed_forward_weights(cfg, normal),
        },
        "norm": norm(D),
    }
    if cfg.query_bias:
        sizes = {"q_bias": queries, "k_bias": shared, "v_bias": shared}
        params["layers"] |= {name: jnp.zeros((L, size), dtype) for name, size in sizes.items()}
    if cfg.query_norm:
        params["layers"] |= {"q_norm": norm(L, cfg.head_size), "k_norm": norm(L, cfg.head_size)}
    if cfg.post_norms:
        params["layers"] |= {"attention_post_norm": norm(L, D), "feed_forward_post_norm": norm(L, D)}
    return params if cfg.tied else params | {"head": normal(D, V, fan_in=D)}


def logits(
    cfg: Config,
    params: PyTree,
    tokens_BT: jax.Array,
    segments_BT: jax.Array | None = None,
    *,
    remat: str = "everything",
) -> jax.Array:
    """Return the logits of the next token at each position, float32[B, T, V].

    Args:
      cfg: The config of the model.
      params: The parameters, as `init` returns them.
      tokens_BT: The tokens, int[B, T].
      segments_BT: As in `features`.
      remat: As in `features`.

    Raises:
      UsageError: As `features`.
    """
    return scores(cfg, params, features(cfg, params, tokens_BT, segments_BT, remat=remat))


def loss(
    cfg: Config,
    params: PyTree,
    batch: dict[str, jax.Array],
    *,
    remat: str = "everything",
    gather: Literal["once", "per chunk"] = "once",
) -> Mean:
    """Return the mean loss of a batch, in nats per token; with experts, the balancing loss is added.

    Each token is predicted from those before it in its segment. Padding and the first token of each segment
    are not counted, and each of the others counts by its weight: sum(weight * loss) / sum(weight). The
    logits are computed for 256 positions at a time, as `mw.nn.cross_entropy` does.

    Args:
      cfg: The config of the model.
      params: The parameters, as `init` returns them.
      batch: `{"tokens": int[B, T]}`; if rows are padded at their end, also `"is_token"`, bool[B, T]. Packed
        rows have `"segments"`, int[B, T], which are numbered from 1; 0 is padding. If tokens count
        differently, also `"weights"`, [B, T], how much each counts as one that is predicted: 0 for those of a
        question.
      remat: As in `features`.
      gather: How often the head is gathered under `fsdp`, as in `mw.nn.cross_entropy`.

    Raises:
      UsageError: As `losses`.
    """
    return loss_and_routing(cfg, params, batch, remat=remat, gather=gather)[0]


def loss_and_routing(
    cfg: Config,
    params: PyTree,
    batch: dict[str, jax.Array],
    *,
    remat: str = "everything",
    gather: Literal["once", "per chunk"] = "once",
) -> tuple[Mean, nn.Routing | None]:
    """Return the result of `loss`, and how even the experts' load is, stacked over layers; None without them.

    The arguments and errors are those of `loss`. Padding is routed, too, and counts in the load.
    """
    tokens_BT, segments_BT = batch["tokens"], batch.get("segments")
    x_BTD, routing = _features_before(cfg, params, tokens_BT, segments_BT, remat)
    counts, cap = next_token_weights(batch), cfg.logit_cap
    with jax.named_scope("head"):
        mean_loss = nn.cross_entropy(
            x_BTD, head(cfg, params), tokens_BT[:, 1:], label_weights=counts, softcap=cap, gather=gather
        )
    return with_balance(cfg, mean_loss, routing), routing


def losses(
    cfg: Config,
    params: PyTree,
    tokens_BT: jax.Array,
    segments_BT: jax.Array | None = None,
    *,
    remat: str = "everything",
) -> jax.Array:
    """Return the loss of each token but the first, in nats: float32[B, T - 1].

    For evaluation; to train, take `loss`, whose gradient computes no logits a second time.

    Args:
      cfg: The config of the model.
      params: The parameters, as `init` returns them.
      tokens_BT: The tokens, int[B, T].
      segments_BT: As in `features`.
      remat: As in `features`.

    Raises:
      UsageError: Rows have only one token; or as `features`.
    """
    x_BTD, _ = _features_before(cfg, params, tokens_BT, segments_BT, remat)
    return nn.token_losses(x_BTD, head(cfg, params), tokens_BT[:, 1:], softcap=cfg.logit_cap)


def _features_before(
    cfg: Config, params: PyTree, tokens_BT: jax.Array, segments_BT: jax.Array | None, remat: str
) -> _Routed:
    """Return the features that each token but the first is predicted from, [B, T - 1, D], and the routing."""
    _check_segments(tokens_BT, segments_BT)
    if tokens_BT.shape[1] < 2:
        raise UsageError(
            f"rows of {tokens_BT.shape[1]} token leave nothing to predict: they need at least 2 tokens."
        )
    segments_before = None if segments_BT is None else segments_BT[:, :-1]
    return _features(cfg, params, tokens_BT[:, :-1], segments_before, remat)


def features(
    cfg: Config,
    params: PyTree,
    tokens_BT: jax.Array,
    segments_BT: jax.Array | None = None,
    *,
    remat: str = "everything",
) -> jax.Array:
    """Return the features before the head at each position, [B, T, D], in the dtype of the parameters.

    Args:
      cfg: The config of the model.
      params: The parameters, as `init` returns them.
      tokens_BT: The tokens, int[B, T].
      segments_BT: The segment of each token, int[B, T], if sequences are packed or padded: a position attends
        to its own segment only. Positions are not reset at a segment, as rotary attention depends only on
        distances.
      remat: The values that a layer keeps for the gradient, a policy of `mw.training.remat`; "nothing" keeps
        only its input.

    Raises:
      UsageError: The segments have another shape than the tokens, or there is no such policy.
    """
    _check_segments(tokens_BT, segments_BT)
    return _features(cfg, params, tokens_BT, segments_BT, remat)[0]


def _features(cfg: Config, params: PyTree, tokens_BT: jax.Array, segments_BT: Any, remat: str) -> _Routed:
    def layer_step(
        inputs: tuple[PyTree, jax.Array, jax.Array | None], x_BTD: jax.Array
    ) -> tuple[jax.Array, Any]:
        layer, frequencies_H, window = inputs
        x_BTD, routing = _block(cfg, layer, x_BTD, frequencies_H, window, segments_BT)
        return shard_sequence_dim(x_BTD), routing

    # No common subexpressions can be shared between the iterations of a scan, so `prevent_cse` is not needed.
    layer_step = jax.checkpoint(layer_step, policy=remat_policy(remat), prevent_cse=False)
    # The scopes are the rows of `meshwright trace`.
    with jax.named_scope("embedding"):
        x_BTD = embedding_lookup(params["embedding"], tokens_BT)
        x_BTD = shard_sequence_dim(x_BTD * jnp.asarray(cfg.embedding_scale, x_BTD.dtype))
    layers = (params["layers"], cfg.layer_frequencies(), cfg.layer_windows())
    with jax.named_scope("layers"):
        x_BTD, routing = nn.layers(layer_step, layers, x_BTD, has_aux=True)
    return rms_norm(cfg, x_BTD, params["norm"]), routing


def _check_segments(tokens_BT: jax.Array, segments_BT: jax.Array | None) -> None:
    if segments_BT is not None and segments_BT.shape != tokens_BT.shape:
        raise UsageError(f"segments have shape {segments_BT.shape}, but the tokens have {tokens_BT.shape}.")


def scores(cfg: Config, params: PyTree, x: jax.Array) -> jax.Array:
    """Return the logits of the next token, float32[..., V], given features [..., D]."""
    return capped(jnp.matmul(x, head(cfg, params), preferred_element_type=jnp.float32), cfg.logit_cap)


def head(cfg: Config, params: PyTree) -> jax.Array:
    """Return the weights from features to logits, [D, V]."""
    return params["embedding"].T if cfg.tied else params["head"]


def block(
    cfg: Config,
    layer: PyTree,
    x_BTD: jax.Array,
    frequencies_H: jax.Array,
    window: jax.Array | None = None,
    segments_BT: jax.Array | None = None,
    cached: nn.CachedAttention | None = None,
) -> jax.Array:
    """Return the output of a layer, [B, T, D]: attention, then feed-forward, each with a residual connection.

    Args:
      cfg: The config of the model.
      layer: The parameters of one layer, without the first dimension of `params["layers"]`.
      x_BTD: The input of the layer.
      frequencies_H: The rotary frequencies of the layer, float32[H / 2].
      window: The number of positions that a position attends to, itself included; None for all before.
      segments_BT: Positions attend to their own segment only; None for one segment.
      cached: The attention to a cache, which also has the positions; None for rows that begin at position 0.
    """
    return _block(cfg, layer, x_BTD, frequencies_H, window, segments_BT, cached)[0]


def _block(cfg: Config, layer: PyTree, x_BTD: jax.Array, *attention_inputs: Any) -> _Routed:
    def inputs(part: str) -> jax.Array:
        return gather_sequence_dim(rms_norm(cfg, x_BTD, layer[f"{part}_norm"]))

    def added(part: str, out_BTD: jax.Array) -> jax.Array:
        out_BTD = shard_sequence_dim(out_BTD)
        return x_BTD + (rms_norm(cfg, out_BTD, layer[f"{part}_post_norm"]) if cfg.post_norms else out_BTD)

    with jax.named_scope("attention"):
        x_BTD = added("attention", attention(cfg, layer, inputs("attention"), *attention_inputs))
    with jax.named_scope("feed_forward"):
        x = inputs("feed_forward")
        x, routing = mixture(cfg, layer, x) if cfg.experts else (feed_forward(cfg, layer, x), None)
        return added("feed_forward", x), routing


def attention(
    cfg: Config,
    layer: PyTree,
    x_BTD: jax.Array,
    frequencies_H: jax.Array,
    window: jax.Array | None = None,
    segments_BT: jax.Array | None = None,
    cached: nn.CachedAttention | None = None,
) -> jax.Array:
    """Return the output of attention with all heads, [B, T, D].

    Args:
      cfg: The config of the model.
      layer: The parameters of one layer.
      x_BTD: The normalised input.
      frequencies_H: The rotary frequencies of the layer, float32[H / 2].
      window: The number of positions that a position attends to, itself included; None for all before.
      segments_BT: Positions attend to their own segment only; None for one segment.
      cached: As in `block`.
    """

    def heads(name: str) -> jax.Array:
        out = x_BTD @ layer[name] + (layer[f"{name}_bias"] if cfg.query_bias else 0)
        return shard_tensor_dim(out.reshape(*x_BTD.shape[:2], -1, cfg.head_size))

    q_BTNH, k_BSGH, v_BSGH = heads("q"), heads("k"), heads("v")
    if cfg.query_norm:
        q_BTNH, k_BSGH = rms_norm(cfg, q_BTNH, layer["q_norm"]), rms_norm(cfg, k_BSGH, layer["k_norm"])
    positions = None if cached is None else cached.positions_BT
    q_BTNH, k_BSGH = rotate(q_BTNH, frequencies_H, positions), rotate(k_BSGH, frequencies_H, positions)
    mask = {"causal": True, "window": window, "segments": segments_BT}
    attend = nn.attention if cached is None else cached
    out = attend(q_BTNH, k_BSGH, v_BSGH, **mask, softcap=cfg.attention_cap, scale=cfg.query_scale)
    return shard_tensor_dim(out).reshape(*x_BTD.shape[:2], -1) @ layer["o"]


def feed_forward(cfg: Config, layer: PyTree, x_BTD: jax.Array) -> jax.Array:
    """Return the output of the gated feed-forward layer, SwiGLU or GeGLU, [B, T, D].

    Args:
      cfg: The config of the model.
      layer: The parameters of one layer.
      x_BTD: The normalised input.
    """
    gate_BTF, up_BTF = (shard_tensor_dim(x_BTD @ layer[name]) for name in ("gate", "up"))
    return shard_tensor_dim(ACTIVATIONS[cfg.activation](gate_BTF) * up_BTF) @ layer["down"]


def rms_norm(cfg: Config, x: jax.Array, scale: jax.Array) -> jax.Array:
    """Divide by the root of the mean square over the last dimension and scale, in float32."""
    wide = x.astype(jnp.float32)
    wide *= jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + cfg.norm_epsilon)
    return (wide * (cfg.norm_offset + scale.astype(jnp.float32))).astype(x.dtype)


def rotate(x_BTNH: jax.Array, frequencies_H: jax.Array, positions_BT: jax.Array | None = None) -> jax.Array:
    """Rotate pairs of features, one from each half, by angles proportional to the position.

    Without `positions_BT` rows begin at position 0.
    """
    positions = jnp.arange(x_BTNH.shape[1]) if positions_BT is None else positions_BT
    angle = positions[..., None] * frequencies_H
    cos, sin = jnp.cos(angle)[..., None, :], jnp.sin(angle)[..., None, :]
    first, second = jnp.split(x_BTNH.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
    return turned.astype(x_BTNH.dtype)


def capped(x: jax.Array, cap: float | None) -> jax.Array:
    """Limit `x` to ± `cap` by a tanh; None leaves it as it is."""
    return x if cap is None else cap * jnp.tanh(x / cap)
