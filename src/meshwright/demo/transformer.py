"""A decoder-only transformer as plain functions on a plain tree: one file to read, copy and change.

Pre-norm blocks with RMS norm (Zhang and Sennrich, 2019), rotary positions (Su et al., 2021) and a
gated feed-forward layer (Shazeer, 2020). The layers' weights are stacked along a first dimension
and scanned over, so that compiling takes as long for forty layers as for one.

Dimensions: B batch, T time, D model, H heads, K head, F feed-forward, V vocabulary, L layers.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

import meshwright as mw


@dataclass(frozen=True)
class Config:
    """The sizes of the model. The defaults make about 0.9 million parameters."""

    vocabulary: int = 256
    model: int = 128
    heads: int = 4
    feed_forward: int = 344
    layers: int = 4

    @property
    def head(self) -> int:
        """The size of one head."""
        return self.model // self.heads


RULES = (
    mw.match("q|k|v|gate|up", None, "fsdp", "tensor"),
    mw.match("o|down", None, "tensor", "fsdp"),
    mw.match("embedding", "tensor", "fsdp"),
    mw.match("head", "fsdp", "tensor"),
)
"""Megatron's pattern: columns in, rows out, so that a block ends in one sum over the tensor axis."""


def init(cfg: Config, key):
    """Return the parameters."""
    keys = iter(jax.random.split(key, 9))

    def normal(*shape, fan_in):
        return jax.random.normal(next(keys), shape) / fan_in**0.5

    L, D, F, V = cfg.layers, cfg.model, cfg.feed_forward, cfg.vocabulary
    return {
        "embedding": normal(V, D, fan_in=D),
        "layers": {
            "attention_norm": jnp.ones((L, D)),
            "q": normal(L, D, D, fan_in=D),
            "k": normal(L, D, D, fan_in=D),
            "v": normal(L, D, D, fan_in=D),
            "o": normal(L, D, D, fan_in=D * 2 * L),
            "feed_forward_norm": jnp.ones((L, D)),
            "gate": normal(L, D, F, fan_in=D),
            "up": normal(L, D, F, fan_in=D),
            "down": normal(L, F, D, fan_in=F * 2 * L),
        },
        "norm": jnp.ones(D),
        "head": normal(D, V, fan_in=D),
    }


def logits(cfg: Config, params, tokens_BT):
    """Return float32[B, T, V]: at each position, the scores of the token that follows."""
    return (features(cfg, params, tokens_BT) @ params["head"]).astype(jnp.float32)


def features(cfg: Config, params, tokens_BT):
    """Return [B, T, D], in the parameters' dtype: what a head reads at each position."""
    x_BTD = mw.look_up(params["embedding"], tokens_BT)

    def one(x_BTD, layer):
        return mw.split_by_example(block(cfg, layer, x_BTD)), None

    x_BTD, _ = jax.lax.scan(one, x_BTD, params["layers"])
    return rms_norm(x_BTD, params["norm"])


def block(cfg: Config, layer, x_BTD):
    """One layer: attention, then feed-forward, each added to what comes in."""
    x_BTD = x_BTD + attention(cfg, layer, rms_norm(x_BTD, layer["attention_norm"]))
    return x_BTD + feed_forward(layer, rms_norm(x_BTD, layer["feed_forward_norm"]))


def attention(cfg: Config, layer, x_BTD):
    """Causal attention of all heads."""

    def heads(weight):
        return (x_BTD @ weight).reshape(*x_BTD.shape[:2], cfg.heads, cfg.head)

    q_BTHK, k_BTHK, v_BTHK = rotate(heads(layer["q"])), rotate(heads(layer["k"])), heads(layer["v"])
    mixed_BTHK = jax.nn.dot_product_attention(q_BTHK, k_BTHK, v_BTHK, is_causal=True)
    return mixed_BTHK.reshape(x_BTD.shape) @ layer["o"]


def feed_forward(layer, x_BTD):
    """SwiGLU."""
    return (jax.nn.silu(x_BTD @ layer["gate"]) * (x_BTD @ layer["up"])) @ layer["down"]


def rms_norm(x, scale):
    """Divide by the root of the mean square over the last dimension, then scale."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def rotate(x_BTHK):
    """Turn pairs of features by angles that grow with the position."""
    half = x_BTHK.shape[-1] // 2
    angle_TK = jnp.arange(x_BTHK.shape[1])[:, None] * 10_000.0 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angle_TK)[:, None], jnp.sin(angle_TK)[:, None]
    first, second = x_BTHK[..., :half], x_BTHK[..., half:]
    turned = jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
    return turned.astype(x_BTHK.dtype)
