"""Feed-forward layers of the decoder with experts, as in Mixtral (Jiang et al., arXiv:2401.04088).

Dimensions: B batch, T time, D model, E experts, F features of an expert, L layers.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from meshwright.base._internal import PyTree
from meshwright.lm._models._config import Config
from meshwright.nn import _internal as nn
from meshwright.observe._internal import Mean

ACTIVATIONS = {"silu": jax.nn.silu, "gelu": jax.nn.gelu}


def feed_forward_weights(cfg: Config, normal: Callable[..., jax.Array]) -> PyTree:
    """Return random weights of the feed-forward layers, with experts or without."""
    L, D, F = cfg.layers, cfg.model, cfg.feed_forward
    experts = () if cfg.experts is None else (cfg.experts,)
    weights = {
        "gate": normal(L, *experts, D, F, fan_in=D),
        "up": normal(L, *experts, D, F, fan_in=D),
        "down": normal(L, *experts, F, D, fan_in=F * 2 * L),
    }
    if cfg.experts is None:
        return weights
    return {"router": normal(L, D, cfg.experts, fan_in=D), "experts": weights}


def mixture(cfg: Config, layer: PyTree, x_BTD: jax.Array) -> tuple[jax.Array, nn.Routing]:
    """Return the weighted sum of each token's experts, [B, T, D], and how even the experts' load is."""
    activation = ACTIVATIONS[cfg.activation]

    def expert(weights: PyTree, rows: jax.Array, dot: Callable[..., jax.Array]) -> jax.Array:
        return dot(activation(dot(rows, weights["gate"])) * dot(rows, weights["up"]), weights["down"])

    logits_BTE = jnp.matmul(x_BTD, layer["router"], preferred_element_type=jnp.float32)
    routing_options = {"top_k": cfg.experts_per_token, "normalize": cfg.normalize_experts}
    return nn.moe(
        expert, layer["experts"], x_BTD, logits_BTE, capacity=cfg.expert_capacity, **routing_options
    )


def with_balance(cfg: Config, loss: Mean, routing: nn.Routing | None) -> Mean:
    """Return a loss with the balancing loss of all layers added; without experts, as it is."""
    if routing is None:
        return loss
    return Mean(loss.total + cfg.balance_factor * routing.balance_loss.mean() * loss.count, loss.count)
