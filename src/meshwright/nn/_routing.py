"""Routers of mixtures of experts: the experts of a token, their weights, and the balance of their load.

Shapes: ... are the examples and positions, E experts, k experts of a token.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Routing:
    """The spread of a router's tokens over the experts. All values are float32 and over the whole batch.

    It is a pytree, so it may be the `aux` of `mw.nn.layers`, which stacks those of all layers.

    Example:
      >>> ones, load = jnp.ones(()), jnp.array([0.7, 0.3])
      >>> routing = mw.nn.Routing(balance_loss=ones, z_loss=ones, load=load, dropped=0 * ones)
      >>> routing.balanced_bias(jnp.zeros(2), rate=0.5).tolist()
      [-0.5, 0.5]
    """

    balance_loss: jax.Array
    """E × the sum of f × p over the experts (Fedus et al., arXiv:2101.03961): f is the share of the choices
    that fell on an expert, and p the mean of its probabilities. It is 1 if all experts are chosen alike.
    Add it to the loss with a small factor, such as 0.01."""
    z_loss: jax.Array
    """The mean square of the log-sum-exp of the logits (Zoph et al., arXiv:2202.08906); a usual factor is
    0.001."""
    load: jax.Array
    """[E], the share of the choices that fell on each expert. They add up to 1."""
    dropped: jax.Array
    """The share of the choices that no expert had room for. It is 0 without a capacity."""

    def balanced_bias(self, bias: jax.Array, rate: float = 0.001) -> jax.Array:
        """Return the bias for the next step: higher for experts with less load than the mean, else lower.

        It balances experts without a loss (Wang et al., arXiv:2408.15664). Keep it in the model's state.

        Args:
          bias: [E], what `mw.nn.moe` took as `bias`.
          rate: The number by which each value moves.

        Example:
          >>> routing = mw.nn.Routing(jnp.ones(()), jnp.ones(()), jnp.array([0.7, 0.1, 0.2]), jnp.zeros(()))
          >>> routing.balanced_bias(jnp.zeros(3), rate=0.5).tolist()
          [-0.5, 0.5, 0.5]
        """
        return bias + rate * jnp.sign(1 / self.load.shape[-1] - self.load)


class Choice(NamedTuple):
    """The experts of each token."""

    experts: jax.Array
    """int32[..., k], the numbers of the experts; E where an expert had no room."""
    weights: jax.Array
    """float32[..., k]."""


Score = Callable[[jax.Array], jax.Array]
"""A function from logits to scores, each at least 0."""


def routed(
    logits: jax.Array,
    choose: Callable[[jax.Array], jax.Array],
    *,
    normalize: bool,
    score: Score,
    bias: jax.Array | None,
    capacity: float | None,
) -> tuple[Choice, Routing]:
    """Return the experts of each token, and the balance of their load."""
    wide, num_experts = logits.astype(jnp.float32), logits.shape[-1]
    scores = score(wide)
    preferred = scores if bias is None else scores + bias.astype(jnp.float32)
    experts = choose(jax.lax.stop_gradient(preferred))
    weights = jnp.take_along_axis(scores, experts, axis=-1)
    if normalize:
        weights /= weights.sum(-1, keepdims=True) + jnp.finfo(jnp.float32).tiny
    is_chosen = experts[..., None] == jnp.arange(num_experts)
    load = is_chosen.mean(range(is_chosen.ndim - 1), dtype=jnp.float32)
    of_tokens = tuple(range(wide.ndim - 1))
    probabilities = (scores / scores.sum(-1, keepdims=True)).mean(of_tokens)
    z_loss = jnp.square(jax.nn.logsumexp(wide, axis=-1)).mean()
    dropped = jnp.zeros((), jnp.float32)
    if capacity is not None:
        has_room = _has_room(is_chosen, room_of(capacity, logits.shape, experts.shape[-1]))
        experts, dropped = jnp.where(has_room, experts, num_experts), 1 - has_room.mean(dtype=jnp.float32)
    routing = Routing(num_experts * (load * probabilities).sum(), z_loss, load, dropped)
    return Choice(experts, weights), routing


def room_of(capacity: float, shape: tuple[int, ...], top_k: int) -> int:
    """Return the number of tokens of an example that an expert takes."""
    length = math.prod(shape[1:-1]) if len(shape) > 2 else shape[0]
    # A token goes to an expert once.
    return min(length, math.ceil(capacity * top_k * length / shape[-1]))


def _has_room(is_chosen: jax.Array, room: int) -> jax.Array:
    """Return whether each choice, [..., k], is among the first `room` of its example for its expert.

    All first choices come before all second ones (Lepikhin et al., arXiv:2006.16668).
    """
    *tokens, k, num_experts = is_chosen.shape
    examples = tokens[0] if len(tokens) > 1 else 1
    in_order = is_chosen.reshape(examples, -1, k, num_experts).swapaxes(1, 2)
    places = jnp.cumsum(in_order.reshape(examples, -1, num_experts), axis=1, dtype=jnp.int32)
    places = jnp.moveaxis(places.reshape(in_order.shape), 1, 2).reshape(is_chosen.shape)
    return ((places <= room) & is_chosen).any(-1)
