"""A decoder with many experts, as a plain function: GShard's routing by capacity (arXiv:2006.16668).

Tokens are routed in groups. Each expert takes `capacity` tokens of a group, the first that choose it.

Dimensions: B batch, T time, D model, E experts, F their features, G groups, S tokens of a group, C capacity,
K experts of a token.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

import meshwright as mw
from meshwright.base._tree import PyTree


@dataclass(frozen=True)
class Config:
    """The sizes; by default 157 billion parameters."""

    vocabulary: int = 128_000
    model: int = 4096
    layers: int = 32
    heads: int = 32
    key_heads: int = 8
    head: int = 128
    experts: int = 256
    feed_forward: int = 1536
    chosen: int = 8
    group: int = 512
    spare: float = 1.25


def init(cfg: Config, key: jax.Array) -> PyTree:
    keys = iter(jax.random.split(key, 10))
    L, D, E, F = cfg.layers, cfg.model, cfg.experts, cfg.feed_forward
    queries, shared = cfg.heads * cfg.head, cfg.key_heads * cfg.head

    def normal(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) / shape[-2] ** 0.5

    layers = {
        "q": normal(L, D, queries),
        "k": normal(L, D, shared),
        "v": normal(L, D, shared),
        "o": normal(L, queries, D),
        "router": normal(L, D, E),
        "gate": normal(L, E, D, F),
        "up": normal(L, E, D, F),
        "down": normal(L, E, F, D),
    }
    return {"embedding": normal(cfg.vocabulary, D), "layers": layers, "head": normal(D, cfg.vocabulary)}


def loss(cfg: Config, params: PyTree, batch: PyTree) -> mw.Mean:
    tokens = batch["tokens"]

    def block(layer: PyTree, x: jax.Array) -> jax.Array:
        normed = norm(x)
        q, k, v = ((normed @ layer[name]).reshape(*x.shape[:2], -1, cfg.head) for name in "qkv")
        x = x + mw.nn.attention(q, k, v, causal=True).reshape(*x.shape[:2], -1) @ layer["o"]
        return x + experts(cfg, layer, norm(x))

    block = jax.checkpoint(block, policy=jax.checkpoint_policies.nothing_saveable)
    x = mw.nn.layers(block, params["layers"], params["embedding"][tokens[:, :-1]])
    return mw.nn.cross_entropy(norm(x), params["head"], tokens[:, 1:])


def norm(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)


def experts(cfg: Config, layer: PyTree, x_BTD: jax.Array) -> jax.Array:
    x_GSD = x_BTD.reshape(-1, cfg.group, cfg.model)
    capacity = max(1, int(cfg.group * cfg.chosen * cfg.spare / cfg.experts))
    weights, chosen = jax.lax.top_k(jax.nn.softmax((x_GSD @ layer["router"]).astype(jnp.float32)), cfg.chosen)
    hot_GSKE = jax.nn.one_hot(chosen, cfg.experts, dtype=jnp.int32)
    before = jnp.cumsum(hot_GSKE.reshape(hot_GSKE.shape[0], -1, cfg.experts), 1).reshape(hot_GSKE.shape)
    place_GSE = (before * hot_GSKE - 1).max(2)
    taken_GSEC = jax.nn.one_hot(place_GSE, capacity, dtype=x_GSD.dtype)
    share_GSE = (hot_GSKE * weights[..., None]).sum(2).astype(x_GSD.dtype)
    sent = jnp.einsum("gsec,gsd->egcd", taken_GSEC, x_GSD)
    hidden = jax.nn.silu(jnp.einsum("egcd,edf->egcf", sent, layer["gate"]))
    hidden *= jnp.einsum("egcd,edf->egcf", sent, layer["up"])
    made = jnp.einsum("egcf,efd->egcd", hidden, layer["down"])
    return jnp.einsum("gsec,gse,egcd->gsd", taken_GSEC, share_GSE, made).reshape(x_BTD.shape)
