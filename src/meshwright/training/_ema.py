"""An exponential moving average of the parameters, kept in the optimizer's state."""

from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import optax

from meshwright.base._internal import PyTree, tree
from meshwright.errors import UsageError
from meshwright.training._trainable import on_devices


class EmaState(NamedTuple):
    """The state of `keep_ema`: the average and its weight."""

    count: jax.Array
    """int32[]: The number of averaged updates."""
    mass: jax.Array
    """float32[]: The sum of the weights of all updates, which is 1 - the product of the decays."""
    ema: PyTree
    """The corrected average in at least float32. Each array has the sharding of its parameter."""


def keep_ema(
    decay: float | optax.Schedule, *, bias_correction: bool = True
) -> optax.GradientTransformationExtraArgs:
    """Keep the moving average of the parameters, `ema = decay * ema + (1 - decay) * params`.

    It does not change the updates. It must be the last part of the optimizer, because it needs the updates
    that are added to the parameters: `optax.chain(optax.adam(1e-3), keep_ema(0.999))`. Read the average with
    `ema_params`.

    With bias correction the average contains the updated parameters only, and the weights sum to 1 (Kingma
    and Ba, 2015, section 3): sum_i (1 - d) d^(t - i) p_i / (1 - d^t). Without bias correction the initial
    parameters have the rest of the weight. In both cases the average starts as a copy of the parameters, not
    as zeros.

    Args:
      decay: The weight of the old average, in [0, 1), or a function of the number of earlier updates.
      bias_correction: If True, the initial parameters are not in the average.

    Raises:
      UsageError: A constant decay is not in [0, 1).

    Example:
      >>> params = {"w": jnp.zeros(())}
      >>> optimizer = optax.chain(optax.sgd(1.0), mw.training.keep_ema(0.5))
      >>> _, (_, average) = optimizer.update({"w": jnp.float32(-2)}, optimizer.init(params), params)
      >>> print(average.ema["w"])
      2.0
    """
    if not callable(decay) and not 0 <= decay < 1:
        raise UsageError(f"keep_ema({decay}): the decay must be in [0, 1), for example 0.999.")

    def init(params: PyTree) -> EmaState:
        mass = jnp.float32(0 if bias_correction else 1)
        return EmaState(jnp.zeros((), jnp.int32), mass, jax.tree.map(_as_average, params))

    def update(updates: PyTree, state: Any, params: PyTree = None, **_: Any) -> tuple[PyTree, EmaState]:
        old = decay(state.count) if callable(decay) else decay
        mass = old * state.mass + (1 - old)
        # `share` is the weight of the newest parameters in the whole sum, so the average is always corrected.
        share = jnp.asarray((1 - old) / jnp.maximum(mass, jnp.finfo(jnp.float32).tiny))

        def average(ema: jax.Array, new: jax.Array) -> jax.Array:
            return (1 - share) * ema + share * new if _is_averaged(new) else new

        ema = jax.tree.map(average, state.ema, optax.apply_updates(params, updates))
        return updates, EmaState(state.count + 1, jnp.float32(mass), ema)

    return optax.GradientTransformationExtraArgs(init, update)


def check_averages_are_last(opt_state: optax.OptState) -> None:
    """Check that nothing in an `optax.chain` changes the updates after `keep_ema` has read them."""
    nodes: list[Any] = [opt_state]
    while nodes:
        node = nodes.pop()
        if type(node) is tuple:  # the state of a chain
            leaves = [jax.tree.leaves(part, is_leaf=_is_average) for part in node]
            has_average = [any(map(_is_average, part)) for part in leaves]
            if has_average != sorted(has_average):
                raise UsageError(
                    "keep_ema must come last in the optimizer: a part after it changes the updates, and the "
                    "average would be wrong.\n"
                    "  Write optax.chain(optax.adam(1e-3), mw.training.keep_ema(0.999))."
                )
        if isinstance(node, tuple | list) and not _is_average(node):
            nodes += node
        elif isinstance(node, dict):
            nodes += node.values()


def ema_params(state: Any) -> PyTree:
    """Return the parameters of a state, with the averages of `keep_ema` in place of averaged parameters.

    The averages are cast to the dtypes of the parameters.

    Args:
      state: A `TrainState`, or an object with `params` and `opt_state`.

    Raises:
      UsageError: The optimizer keeps no average, or `state` is not a training state.

    Example:
      >>> optimizer = optax.chain(optax.sgd(0.1), mw.training.keep_ema(0.9))
      >>> layout = mw.Layout(mw.make_mesh("data=-1"))
      >>> state = mw.training.state_from({"w": jnp.ones(2)}, optimizer, 0, layout)
      >>> print(mw.training.ema_params(state)["w"])
      [1. 1.]
    """
    if not hasattr(state, "opt_state"):
        raise UsageError(
            f"ema_params expects a training state; found a value of type {type(state).__name__}.\n"
            "  For a checkpoint, use mw.engine.open_averages(mw.checkpoints.open_best('runs/x'))."
        )
    averages = _averages(state)
    if not averages:
        raise UsageError(
            "the optimizer keeps no average of the parameters.\n  Put `mw.training.keep_ema(0.999)` last in "
            "it: `optax.chain(optax.adam(1e-3), mw.training.keep_ema(0.999))`."
        )
    averaged = on_devices({name: x for average in averages for name, x in average.items()})
    return tree.map_named(lambda name, x: averaged.get(name, x).astype(x.dtype), state.params)


def eval_params(state: Any) -> PyTree:
    """Return the parameters to evaluate: `ema_params(state)` if there are averages, otherwise `state.params`.

    Args:
      state: A `TrainState`, or an object with `params` only.

    Example:
      >>> layout = mw.Layout(mw.make_mesh("data=-1"))
      >>> state = mw.training.state_from({"w": jnp.ones(2)}, optax.sgd(0.1), 0, layout)
      >>> mw.training.eval_params(state) is state.params  # as the optimizer keeps no averages
      True
    """
    return ema_params(state) if _averages(state) else state.params


def only_averages(opt_state: optax.OptState) -> PyTree:
    """Return an optimizer's state with only the states of `keep_ema`, and None in all other places."""
    return jax.tree.map(lambda x: x if _is_average(x) else None, opt_state, is_leaf=_is_average)


def _averages(state: Any) -> list[dict[str, jax.Array]]:
    """Return the averages in a training state, by the names of their parameters."""
    nodes = jax.tree.leaves(getattr(state, "opt_state", None), is_leaf=_is_average)
    return [tree.named_leaves(node.ema) for node in nodes if _is_average(node)]


def _is_average(x: Any) -> TypeGuard[EmaState]:
    return isinstance(x, EmaState)


def _as_average(x: jax.Array) -> jax.Array:
    """Return a copy of `x` in a dtype wide enough for an average. The original may be donated."""
    return jnp.array(x, jnp.promote_types(x.dtype, jnp.float32) if _is_averaged(x) else x.dtype)


def _is_averaged(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)
