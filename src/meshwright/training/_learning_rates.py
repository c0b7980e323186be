"""Find the learning rates of an optimizer from its parts and their state.

An optax optimizer has no attribute for its learning rate: `optax.adam(1e-3)` is a chain of functions, and the
last one multiplies the updates by -1e-3. This module therefore reads the parts of the optimizer:

    optax.scale, optax.scale_by_schedule   the factor by which they multiplied the newest update
    optax.inject_hyperparams               the "learning_rate" in its state
    optax.chain                            the product of the factors of its parts
    mw.training.by_path, optax.partition      one rate for each of their optimizers
    mw.training.scale_by_path                 one rate for each of its patterns
    a wrapper of one optimizer             the rate of that optimizer; masks, guards and optax.MultiSteps

A schedule is evaluated at the last update, which is known from the count in the schedule's own state. Skipped
updates and the micro-steps of `optax.MultiSteps` do not count. No rate is reported for other transformations,
or for a chain whose learning rate is ambiguous.
"""

import contextlib
import functools
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from meshwright.training._by_path import by_path, scale_by_path
from meshwright.training._trainable import Tx, as_trainable

Rates = dict[str, float]
Factors = dict[str, float]
"""The factors that multiply the updates, by path or label. The key "" stands for all other parameters."""
Update = Callable[..., Any]
"""The `update` function of an optax transformation."""
FindFactors = Callable[[Update, Any], Factors]
"""A function that returns the factors of an inner transformation, given its `update` and its state."""


def learning_rates(optimizer: Tx) -> Callable[[optax.OptState], Rates]:
    """Return a function that takes the optimizer's state and returns the learning rates of the last update.

    The function returns, for example, `{"learning_rate": 0.001}`. For `by_path` it returns one entry
    `learning_rate/PATTERN` for each pattern. It returns an empty dictionary if it finds no rate.

    Example:
      >>> optimizer = optax.adam(1e-3)
      >>> mw.training.learning_rates(optimizer)(optimizer.init({"w": jnp.ones(())}))
      {'learning_rate': 0.001}
    """
    scheduled = functools.cache(_scheduled)

    def rates(opt_state: optax.OptState) -> Rates:
        factors = _factors(as_trainable(optimizer).optimizer.update, opt_state, scheduled, ())
        found = {name: -factor for name, factor in factors.items() if _is_negative(factor)}
        if len(found) == 1:
            return {"learning_rate": next(iter(found.values()))}
        return {f"learning_rate/{name}" if name else "learning_rate": rate for name, rate in found.items()}

    return rates


def _factors(update: Update, state: Any, scheduled: Callable[..., Any], outer: tuple[Update, ...]) -> Factors:
    """Return the factors by which a transformation multiplied the newest updates."""
    if update in outer:
        return {}
    shown = _variables(update)
    find = functools.partial(_factors, scheduled=scheduled, outer=(*outer, update))
    if _is_made_by(optax.scale, update):
        return {"": float(update(1.0, state)[0])}
    if _is_made_by(optax.scale_by_schedule, update) and isinstance(state, optax.ScaleByScheduleState):
        return {"": float(scheduled(update)(np.int32(max(np.asarray(state.count).item() - 1, 0))))}
    if _is_made_by(scale_by_path, update):
        return {"": 1.0, **dict(shown["factors"])}
    if "learning_rate" in getattr(state, "hyperparams", ()):
        return {"": -float(state.hyperparams["learning_rate"])}
    if parts := _chained(shown, state):
        return _chain_factors(parts, find)
    if branches := _branches(update, shown, state):
        return _by_name({name: find(*branch) for name, branch in branches.items()})
    return _wrapped_factors(shown, state, find)


def _chain_factors(parts: Sequence[tuple[Update, Any]], find: FindFactors) -> Factors:
    """Return the product of the factors of a chain's parts, or no factors if the learning rate is ambiguous.

    A factor before a complete optimizer scales the gradients, and does not change the updates of Adam, for
    example. If a part with a state stands between a factor and the part that makes the updates negative, the
    factor may or may not change the updates. A single factor of -1 is only a sign, not a learning rate.
    """
    total: Factors = {}
    num_found, is_plain, has_state_between = 0, False, False
    for update, state in parts:
        found = find(update, state)
        if not found:
            has_state_between |= bool(total) and bool(jax.tree.leaves(state))
            continue
        num_found, is_plain = num_found + 1, isinstance(state, optax.EmptyState | optax.ScaleByScheduleState)
        negates = all(map(_is_negative, found.values())) and not any(map(_is_negative, total.values()))
        if negates and is_plain and has_state_between:
            return {}
        total = found if negates and not is_plain else _product(total, found)
    return {} if (num_found, is_plain, total) == (1, True, {"": -1.0}) else total


def _wrapped_factors(shown: Mapping[str, Any], state: Any, find: FindFactors) -> Factors:
    """Return the factors of the one transformation inside a wrapper, or no factors if there are several.

    The state of the inner transformation is the state of the wrapper, or a field of it.
    """
    held = [value for value in shown.values() if _is_transformation(value)]
    places = (state, *state) if hasattr(state, "_fields") else (state,)
    found = (find(held[0].update, place) for place in places) if len(held) == 1 else ()
    return next(filter(None, found), {})


def _product(one: Factors, other: Factors) -> Factors:
    """Return the products by name, or no factors if each side has names that the other side lacks."""
    if one.keys() <= {""}:
        return {name: one.get("", 1.0) * factor for name, factor in other.items()}
    if other.keys() == {""}:
        return {name: factor * other[""] for name, factor in one.items()}
    return {name: factor * other[name] for name, factor in one.items()} if one.keys() == other.keys() else {}


def _chained(shown: Mapping[str, Any], state: Any) -> list[tuple[Update, Any]]:
    """Return the parts of an `optax.chain`, each with its state, or an empty list if it is not a chain."""
    for value in shown.values():
        if type(state) is tuple and isinstance(value, tuple) and len(value) == len(state):
            return list(zip(value, state, strict=True)) if all(map(callable, value)) else []
    return []


def _branches(update: Update, shown: Mapping[str, Any], state: Any) -> dict[str, tuple[Update, Any]]:
    """Return the optimizers of different parameters, by pattern or label, each with its state."""
    states = getattr(state, "inner_states", None)
    if isinstance(states, Mapping) and _is_made_by(by_path, update):
        rules = enumerate(shown["rules"])
        return {pattern: (optimizer.update, states[str(i)].inner_state) for i, (pattern, optimizer) in rules}
    for value in shown.values():
        if isinstance(states, Mapping) and isinstance(value, Mapping) and value.keys() == states.keys():
            return {
                str(label): (optimizer.update, states[label].inner_state)
                for label, optimizer in value.items()
            }
    return {}


def _by_name(found: Mapping[str, Factors]) -> Factors:
    return {
        "/".join(filter(None, (outer, inner))): factor
        for outer, factors in found.items()
        for inner, factor in factors.items()
    }


def _scheduled(update: Update) -> Callable[[np.int32], jax.Array]:
    """Return a function that takes the number of earlier updates and returns the factor of a schedule."""
    return jax.jit(lambda count: update(jnp.float32(1), optax.ScaleByScheduleState(count))[0])


def _is_made_by(factory: Callable[..., Any], function: Update) -> bool:
    made_in = getattr(function, "__qualname__", "").partition(".<locals>")[0]
    return made_in == factory.__qualname__ and function.__module__ == factory.__module__


def _is_transformation(value: Any) -> bool:
    return callable(getattr(value, "init", None)) and callable(getattr(value, "update", None))


def _variables(function: Update) -> Mapping[str, Any]:
    """Return the variables that a function closes over, or the attributes of the object of a method."""
    if (owner := getattr(function, "__self__", None)) is not None:
        return getattr(owner, "__dict__", {})
    if not isinstance(function, types.FunctionType):
        return {}
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # the variable has no value yet
            found[name] = cell.cell_contents
    return found


def _is_negative(factor: float) -> bool:
    """Return whether a factor has a negative sign. At the start of a warm-up it is -0.0."""
    return math.copysign(1, factor) < 0
