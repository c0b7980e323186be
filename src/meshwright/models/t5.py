"""T5 (Raffel et al., 2020), in its first form and as v1.1: plain functions on a plain tree, in one file.

An encoder that sees all of the inputs, and a decoder that sees the targets before it and all of the encoder.
Positions are buckets of distances, with a bias for each head that all layers of a stack share; scores are
not scaled, as the initialisation takes care of that. v1.1 has GeGLU for ReLU and a head of its own.

Dimensions: B batch, S inputs, T targets, D model, N heads, H one head, F feed-forward, V vocabulary,
L layers.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.errors import UsageError
from meshwright.models import decoder
from meshwright.models._config import check_sizes
from meshwright.sharding import embedding_lookup, match, shard_batch_dim
from meshwright.train import remat_policy
from meshwright.tree import PyTree


@dataclass(frozen=True)
class Config:
    """The sizes of the model. The defaults are those of T5 1.1 small, of 77 million parameters.

    Raises:
      UsageError: the sizes do not go together.
    """

    vocabulary: int = 32_128
    model: int = 512
    layers: int = 8
    """Of the encoder."""
    decoder_layers: int = 8
    heads: int = 6
    head: int = 64
    """The size of one."""
    feed_forward: int = 1024
    gated: bool = True
    """GeGLU, in tanh's approximation; else ReLU, as the first T5 has it."""
    tied: bool = False
    """The head is the embedding, over the root of the model's size."""
    buckets: int = 32
    max_distance: int = 128
    """From here on all distances are one."""
    norm_epsilon: float = 1e-6

    def __post_init__(self) -> None:
        check_sizes(self, "vocabulary", "model", "layers", "decoder_layers", "heads", "head", "feed_forward")
        if self.buckets < 4 or self.buckets % 2 or self.max_distance <= self.buckets // 2:
            raise UsageError(
                f"Config.buckets is {self.buckets} and Config.max_distance {self.max_distance}; buckets are "
                "even, 4 at least, and the largest distance is more than half of them."
            )


RULES = (
    match("cross_[qkv]", None, "fsdp", "tensor"),
    match("cross_o", None, "tensor", "fsdp"),
    *decoder.RULES,
)
"""The decoder's rules, and those for the arrays that it does not have."""


def init(cfg: Config, key: jax.Array, dtype: Any = jnp.float32) -> PyTree:
    """Return the parameters."""
    embedding, encoder, targets, head = jax.random.split(key, 4)
    D, V = cfg.model, cfg.vocabulary
    params = {
        "embedding": jax.random.normal(embedding, (V, D), dtype),
        "encoder": _stack(cfg, encoder, cfg.layers, ("",), dtype),
        "decoder": _stack(cfg, targets, cfg.decoder_layers, ("", "cross_"), dtype),
    }
    return params if cfg.tied else params | {"head": jax.random.normal(head, (D, V), dtype) / D**0.5}


def _stack(cfg: Config, key: jax.Array, L: int, attentions: tuple[str, ...], dtype: Any) -> PyTree:
    """Return the parameters of an encoder, or of a decoder with its `cross_` attention."""
    D, F, inner = cfg.model, cfg.feed_forward, cfg.heads * cfg.head
    weights = {"up": (D, F), "down": (F, D)} | ({"gate": (D, F)} if cfg.gated else {})
    for prefix in attentions:
        weights |= {f"{prefix}{name}": (D, inner) for name in "qkv"} | {f"{prefix}o": (inner, D)}
    norms = ["feed_forward_norm", *(f"{prefix}attention_norm" for prefix in attentions)]
    *keys, last = jax.random.split(key, len(weights) + 1)

    def deviation(name: str) -> float:
        return weights[name][0] ** -0.5 * (cfg.head**-0.5 if name.endswith("q") else 1)

    return {
        "position_bias": jax.random.normal(last, (cfg.buckets, cfg.heads), dtype) / D**0.5,
        "layers": {
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
    """Return float32[B, T, V]: at each position of the targets, the scores of the one that follows.

    Args:
      targets_BT: begin with a token that stands for the beginning; T5's is 0.
      is_input_BS: which of the inputs are there, where others are padding.
      remat: what a layer keeps for the gradient, a policy of `mw.train.remat`.
    """
    encoded_BSD = encode(cfg, params, inputs_BS, is_input_BS, remat=remat)
    x_BTD = decode(cfg, params, targets_BT, encoded_BSD, is_input_BS, remat=remat)
    head_DV = params["embedding"].T * cfg.model**-0.5 if cfg.tied else params["head"]
    return jnp.matmul(x_BTD, head_DV, preferred_element_type=jnp.float32)


def encode(
    cfg: Config,
    params: PyTree,
    inputs_BS: jax.Array,
    is_input_BS: jax.Array | None = None,
    *,
    remat: str = "everything",
) -> jax.Array:
    """Return [B, S, D], in the parameters' dtype: what the decoder reads of the inputs. As `logits`."""
    stack, length = params["encoder"], inputs_BS.shape[1]
    bias_NSS = position_bias(cfg, stack["position_bias"], length, bidirectional=True)
    mask = None if is_input_BS is None else is_input_BS[:, None, None]

    def one(x_BSD: jax.Array, layer: PyTree) -> tuple[jax.Array, None]:
        normed_BSD = rms_norm(cfg, x_BSD, layer["attention_norm"])
        x_BSD = x_BSD + attention(cfg, layer, "", normed_BSD, normed_BSD, bias_NSS, mask)
        return shard_batch_dim(x_BSD + feed_forward(cfg, layer, x_BSD)), None

    one = jax.checkpoint(one, policy=remat_policy(remat), prevent_cse=False)
    x_BSD, _ = jax.lax.scan(one, embedding_lookup(params["embedding"], inputs_BS), stack["layers"])
    return rms_norm(cfg, x_BSD, stack["norm"])


def decode(
    cfg: Config,
    params: PyTree,
    targets_BT: jax.Array,
    encoded_BSD: jax.Array,
    is_input_BS: jax.Array | None = None,
    *,
    remat: str = "everything",
) -> jax.Array:
    """Return [B, T, D], in the parameters' dtype: what the head reads at each position. As `logits`."""
    stack, length = params["decoder"], targets_BT.shape[1]
    bias_NTT = position_bias(cfg, stack["position_bias"], length, bidirectional=False)
    causal = jnp.tril(jnp.ones((1, 1, length, length), bool))
    mask = None if is_input_BS is None else is_input_BS[:, None, None]

    def one(x_BTD: jax.Array, layer: PyTree) -> tuple[jax.Array, None]:
        normed_BTD = rms_norm(cfg, x_BTD, layer["attention_norm"])
        x_BTD = x_BTD + attention(cfg, layer, "", normed_BTD, normed_BTD, bias_NTT, causal)
        normed_BTD = rms_norm(cfg, x_BTD, layer["cross_attention_norm"])
        x_BTD = x_BTD + attention(cfg, layer, "cross_", normed_BTD, encoded_BSD, None, mask)
        return shard_batch_dim(x_BTD + feed_forward(cfg, layer, x_BTD)), None

    one = jax.checkpoint(one, policy=remat_policy(remat), prevent_cse=False)
    x_BTD, _ = jax.lax.scan(one, embedding_lookup(params["embedding"], targets_BT), stack["layers"])
    return rms_norm(cfg, x_BTD, stack["norm"])


def attention(
    cfg: Config,
    layer: PyTree,
    prefix: str,
    x_BTD: jax.Array,
    seen_BSD: jax.Array,
    bias_NTS: jax.Array | None,
    mask: jax.Array | None,
) -> jax.Array:
    """Attention of all heads from each T to each S that `mask`, bool[B or 1, 1, T or 1, S], lets it see."""

    def heads(name: str, x: jax.Array) -> jax.Array:
        return (x @ layer[f"{prefix}{name}"]).reshape(*x.shape[:2], cfg.heads, cfg.head)

    out_BTNH = jax.nn.dot_product_attention(
        heads("q", x_BTD),
        heads("k", seen_BSD),
        heads("v", seen_BSD),
        None if bias_NTS is None else bias_NTS[None],
        mask,
        scale=1.0,
    )
    return out_BTNH.reshape(*x_BTD.shape[:2], -1) @ layer[f"{prefix}o"]


def feed_forward(cfg: Config, layer: PyTree, x_BTD: jax.Array) -> jax.Array:
    """Normalise, then GeGLU or ReLU."""
    x_BTD = rms_norm(cfg, x_BTD, layer["feed_forward_norm"])
    if cfg.gated:
        return (jax.nn.gelu(x_BTD @ layer["gate"]) * (x_BTD @ layer["up"])) @ layer["down"]
    return jax.nn.relu(x_BTD @ layer["up"]) @ layer["down"]


def position_bias(cfg: Config, table: jax.Array, length: int, *, bidirectional: bool) -> jax.Array:
    """Return what is added to the scores of rows of `length`: [N, T, S], S being as long as T."""
    time = np.arange(length)
    buckets_TS = bucket(cfg, time - time[:, None], bidirectional=bidirectional)
    return jnp.transpose(table[buckets_TS], (2, 0, 1))


def bucket(cfg: Config, distance: np.ndarray, *, bidirectional: bool) -> np.ndarray:
    """Return the bucket of each distance, positive where what is seen follows.

    Half of the buckets are of one distance each, the others grow up to `max_distance`. Where both directions
    are seen each has half of all; else those that follow are in the first, and hidden.
    """
    count = cfg.buckets // 2 if bidirectional else cfg.buckets
    first = np.where(distance > 0, count, 0) if bidirectional else 0
    far = np.abs(distance) if bidirectional else np.maximum(-distance, 0)
    exact = count // 2
    growing = np.log(np.maximum(far, 1) / exact) / math.log(cfg.max_distance / exact) * (count - exact)
    return first + np.where(far < exact, far, np.minimum(exact + growing.astype(int), count - 1))


def rms_norm(cfg: Config, x: jax.Array, scale: jax.Array) -> jax.Array:
    """Divide by the root of the mean square over the last dimension, then scale; in float32."""
    wide = x.astype(jnp.float32)
    wide *= jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + cfg.norm_epsilon)
    return (wide * scale.astype(jnp.float32)).astype(x.dtype)
