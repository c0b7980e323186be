"""Skip updates with gradients that are not finite or too large, and count them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from meshwright.base._internal import PyTree
from meshwright.errors import UsageError
from meshwright.observe._internal import Histogram, Mean
from meshwright.training._loss import Metrics
from meshwright.training._norms import global_norm


class Norms(NamedTuple):
    """Moving averages of the gradient norms of the updates that were not skipped, with bias correction."""

    count: jax.Array
    """int32[]: The number of updates that were not skipped."""
    mass: jax.Array
    """float32[]: The sum of the weights, which is 1 - decay^count."""
    mean: jax.Array
    """float32[]: The mean of the norms."""
    square: jax.Array
    """float32[]: The mean of the squared norms."""

    @property
    def std(self) -> jax.Array:
        return jnp.sqrt(jnp.maximum(self.square - self.mean**2, 0))

    def with_norm(self, norm: jax.Array, decay: float) -> "Norms":
        """Return the statistics after one more norm."""
        mass = decay * self.mass + (1 - decay)
        share = (1 - decay) / mass
        mean, square = (1 - share) * self.mean + share * norm, (1 - share) * self.square + share * norm**2
        return Norms(self.count + 1, mass, mean, square)


Threshold = Callable[[Norms], jax.Array]
"""A function of the norms so far. It returns the gradient norm at and above which updates are skipped."""


class SkipState(NamedTuple):
    """The state of `skip_exploding`: recent norms, skipped updates, and the inner optimizer's state."""

    skipped: jax.Array
    """int32[]: The number of skipped updates."""
    norms: Norms
    inner_state: optax.OptState


def skip_exploding(
    optimizer: optax.GradientTransformation,
    threshold: float | Threshold = float("inf"),
    *,
    decay: float = 0.99,
) -> optax.GradientTransformationExtraArgs:
    """Return an optimizer that skips an update whose gradients are not finite or too large.

    A skipped update leaves the parameters and the optimizer's state as they are. To clip gradients
    too, put the clipping inside:
    `skip_exploding(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)), mean_plus_std(6))`.

    Transformations outside the guard do not skip. An average (`keep_ema`) after the guard, for example,
    counts the unchanged parameters once more.

    The state counts the skipped updates. The metrics of a step contain `skipped`, the fraction of skipped
    updates.

    Args:
      optimizer: The optax transformation to guard.
      threshold: The global gradient norm at and above which an update is skipped. It is a number or a
        function of the norms so far, such as `mean_plus_std`.
      decay: The decay of the moving averages of the norms. Norms of skipped updates are not averaged.

    Raises:
      UsageError: The threshold is not positive, or the decay is not in [0, 1).

    Example:
      >>> params = {"w": jnp.ones(())}
      >>> optimizer = mw.training.skip_exploding(optax.sgd(0.1))
      >>> updates, state = optimizer.update({"w": jnp.float32(jnp.nan)}, optimizer.init(params), params)
      >>> print(updates["w"], state.skipped)
      0.0 1
    """
    if not 0 <= decay < 1 or not (callable(threshold) or threshold > 0):
        raise UsageError(
            f"skip_exploding(threshold={threshold}, decay={decay}): the threshold must be positive or a "
            "function of `Norms`, and the decay must be in [0, 1)."
        )
    inner = optax.with_extra_args_support(optimizer)

    def init(params: PyTree) -> SkipState:
        zero, none = jnp.zeros(()), jnp.zeros((), jnp.int32)
        return SkipState(none, Norms(none, zero, zero, zero), inner.init(params))

    def update(updates: PyTree, state: Any, params: PyTree = None, **extra: Any) -> tuple[PyTree, SkipState]:
        norm = global_norm(updates)
        limit = threshold(state.norms) if callable(threshold) else threshold
        fits = norm < limit  # False for NaN and infinity
        updates, inner_state = inner.update(updates, state.inner_state, params, **extra)
        new = updates, state.norms.with_norm(norm, decay), inner_state
        old = optax.tree.zeros_like(updates), state.norms, state.inner_state
        updates, norms, inner_state = jax.tree.map(lambda x, y: jnp.where(fits, x, y), new, old)
        return updates, SkipState(state.skipped + ~fits, norms, inner_state)

    return optax.GradientTransformationExtraArgs(init, update)


def mean_plus_std(stds: float, *, after: int = 100) -> Threshold:
    """Return a threshold of `stds` standard deviations above the mean norm.

    The standard deviation is taken as at least 1% of the mean, so that equal norms are not skipped because of
    rounding. The norms of skipped updates are not averaged. If the norms rise permanently, all updates are
    therefore skipped from then on; watch the metric `skipped`.

    Args:
      stds: The number of standard deviations above the mean.
      after: The number of first updates without a threshold.

    Raises:
      UsageError: `stds` is not positive, or `after` is below 1. Every update would be skipped.

    Example:
      >>> optimizer = mw.training.skip_exploding(optax.sgd(0.1), mw.training.mean_plus_std(6, after=100))
      >>> mw.training.mean_plus_std(6)
      MeanPlus(stds=6, after=100)
    """
    if not stds > 0 or after < 1:
        raise UsageError(
            f"mean_plus_std({stds}, after={after}) would skip every update: give more than 0 standard "
            "deviations and at least after=1, because there is no mean before the first update."
        )

    return MeanPlus(stds, after)


@dataclass(frozen=True)
class MeanPlus:
    """The threshold that `mean_plus_std` returns."""

    stds: float
    after: int

    def __call__(self, norms: Norms) -> jax.Array:
        std = jnp.maximum(norms.std, 0.01 * norms.mean)
        return jnp.where(norms.count < self.after, jnp.inf, norms.mean + self.stds * std)


def with_skipped(
    metrics: Metrics, updates: PyTree, old_state: optax.OptState, new_state: optax.OptState
) -> Metrics:
    """Return `metrics` with the metric `skipped` if the optimizer may skip updates.

    In a skipped step, metrics that are not finite get the weight 0, so that reports show the other steps. If
    the guard is for some parameters only, and the `updates` of other parameters are not finite, the step does
    not count as skipped.
    """
    counts = [new - old for new, old in zip(_skipped(new_state), _skipped(old_state), strict=True)]
    if not counts:
        return metrics
    is_harmless = jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(updates)]).all()
    total = jnp.where(is_harmless, jnp.float32(sum(counts)), 0)
    harmless = {name: _harmless(metric, total > 0) for name, metric in metrics.items()}
    return {**harmless, "skipped": Mean(total, jnp.float32(len(counts)))}


def _skipped(state: optax.OptState) -> list[jax.Array]:
    nodes = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, SkipState))
    return [node.skipped for node in nodes if isinstance(node, SkipState)]


def _harmless(metric: Mean | Histogram, skipped: ArrayLike) -> Mean | Histogram:
    """Return `metric`, or an empty metric (zeros) if the step was skipped and `metric` is not finite."""
    finite = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(metric)]
    left_out = jnp.logical_and(skipped, ~jnp.all(jnp.stack(finite)))
    return jax.tree.map(lambda x: jnp.where(left_out, 0, x), metric)
