"""Updates that would do harm are left out, and counted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from meshwright.errors import UsageError
from meshwright.metrics import Histogram, Mean
from meshwright.train._loss import Metrics
from meshwright.train._norms import global_norm
from meshwright.tree import PyTree


class Norms(NamedTuple):
    """Moving averages over the gradient norms of the updates that were made, corrected for their start."""

    count: jax.Array
    """int32[]: updates made."""
    mass: jax.Array
    """float32[]: 1 - decay^count."""
    mean: jax.Array
    """float32[]"""
    square: jax.Array
    """float32[]: the mean of the squares."""

    @property
    def std(self) -> jax.Array:
        return jnp.sqrt(jnp.maximum(self.square - self.mean**2, 0))

    def with_norm(self, norm: jax.Array, decay: float) -> "Norms":
        """Return these statistics with one more norm."""
        mass = decay * self.mass + (1 - decay)
        share = (1 - decay) / mass
        mean, square = (1 - share) * self.mean + share * norm, (1 - share) * self.square + share * norm**2
        return Norms(self.count + 1, mass, mean, square)


Threshold = Callable[[Norms], jax.Array]
"""The gradient norm from which on an update is skipped."""


class SkipState(NamedTuple):
    """The state of `skip_exploding`: recent norms, skipped updates, and the inner optimizer's state."""

    skipped: jax.Array
    """int32[]: updates skipped so far."""
    norms: Norms
    inner_state: optax.OptState


def skip_exploding(
    optimizer: optax.GradientTransformation,
    threshold: float | Threshold = float("inf"),
    *,
    decay: float = 0.99,
) -> optax.GradientTransformationExtraArgs:
    """Return an optimizer that skips an update whose gradients are not finite or too large.

    A skipped update leaves the parameters and the optimizer's state as they are. To clip, too, clip inside:
    `skip_exploding(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)), mean_plus_std(6))`.

    What stands outside goes on: an average (`keep_ema`) after the guard counts the parameters once more.

    The state counts what was skipped, and a step's metrics hold `skipped`, the share of updates skipped.

    Args:
      optimizer: the optax transformation to guard.
      threshold: the global gradient norm from which on an update is skipped: a number, or a function of the
        norms so far, such as `mean_plus_std`.
      decay: the decay of the moving averages over the norms; skipped ones do not enter.

    Raises:
      UsageError: a threshold that is not positive, or a decay that is not in [0, 1).

    Example:
      >>> params = {"w": jnp.ones(())}
      >>> optimizer = mw.train.skip_exploding(optax.sgd(0.1))
      >>> updates, state = optimizer.update({"w": jnp.float32(jnp.nan)}, optimizer.init(params), params)
      >>> print(updates["w"], state.skipped)
      0.0 1
    """
    if not 0 <= decay < 1 or not (callable(threshold) or threshold > 0):
        raise UsageError(
            f"skip_exploding(threshold={threshold}, decay={decay}): a threshold is positive or a function of "
            "`Norms`, a decay is in [0, 1)."
        )
    inner = optax.with_extra_args_support(optimizer)

    def init(params: PyTree) -> SkipState:
        zero, none = jnp.zeros(()), jnp.zeros((), jnp.int32)
        return SkipState(none, Norms(none, zero, zero, zero), inner.init(params))

    def update(updates: PyTree, state: Any, params: PyTree = None, **extra: Any) -> tuple[PyTree, SkipState]:
        norm = global_norm(updates)
        limit = threshold(state.norms) if callable(threshold) else threshold
        fits = norm < limit  # false of NaN and infinity
        updates, inner_state = inner.update(updates, state.inner_state, params, **extra)
        new = updates, state.norms.with_norm(norm, decay), inner_state
        old = optax.tree.zeros_like(updates), state.norms, state.inner_state
        updates, norms, inner_state = jax.tree.map(lambda x, y: jnp.where(fits, x, y), new, old)
        return updates, SkipState(state.skipped + ~fits, norms, inner_state)

    return optax.GradientTransformationExtraArgs(init, update)


def mean_plus_std(stds: float, *, after: int = 100) -> Threshold:
    """Return the threshold of so many standard deviations above the mean norm, none for `after` updates.

    A deviation is at least a hundredth of the mean: norms that stay the same are not to be skipped for their
    last bit. As skipped norms do not enter the mean, a lasting rise is skipped for ever: watch `skipped`.

    Raises:
      UsageError: `stds` is not positive, or `after` is below 1: every update would be skipped.
    """
    if not stds > 0 or after < 1:
        raise UsageError(
            f"mean_plus_std({stds}, after={after}) would skip every update: give more than 0 standard "
            "deviations and at least after=1, for before the first update there is no mean."
        )

    return MeanPlus(stds, after)


@dataclass(frozen=True)
class MeanPlus:
    """The threshold that `mean_plus_std` makes."""

    stds: float
    after: int

    def __call__(self, norms: Norms) -> jax.Array:
        std = jnp.maximum(norms.std, 0.01 * norms.mean)
        return jnp.where(norms.count < self.after, jnp.inf, norms.mean + self.stds * std)


def with_skipped(metrics: Metrics, updates: PyTree, before: optax.OptState, after: optax.OptState) -> Metrics:
    """Return `metrics` with `skipped`, if the optimizer may skip, and without what a skip made harmless.

    What is not finite in a step that was skipped weighs nothing, so that reports show the other steps. Where
    a guard is of some parameters and the `updates` of others are not finite, nothing counts as skipped.
    """
    counts = [now - then for now, then in zip(_skipped(after), _skipped(before), strict=True)]
    if not counts:
        return metrics
    is_harmless = jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(updates)]).all()
    total = jnp.where(is_harmless, jnp.float32(sum(counts)), 0)
    kept = {name: _harmless(metric, total > 0) for name, metric in metrics.items()}
    return {**kept, "skipped": Mean(total, jnp.float32(len(counts)))}


def _skipped(state: optax.OptState) -> list[jax.Array]:
    nodes = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, SkipState))
    return [node.skipped for node in nodes if isinstance(node, SkipState)]


def _harmless(metric: Mean | Histogram, skipped: ArrayLike) -> Mean | Histogram:
    """Return `metric`, or one of nothing, which is zeros in both kinds."""
    finite = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(metric)]
    left_out = jnp.logical_and(skipped, ~jnp.all(jnp.stack(finite)))
    return jax.tree.map(lambda x: jnp.where(left_out, 0, x), metric)
