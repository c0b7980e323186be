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

    # The factor of a schedule, by the number of earlier updates. Each schedule is compiled once.
    @functools.cache
    def scheduled(update: Update) -> Callable[[np.int32], jax.Array]:
        return jax.jit(lambda count: update(jnp.float32(1), optax.ScaleByScheduleState(count))[0])

    def rates(opt_state: optax.OptState) -> Rates:
        factors = _factors(as_trainable(optimizer).optimizer.update, opt_state, scheduled, ())
        rates_by_name = {name: -factor for name, factor in factors.items() if _is_negative(factor)}
        if len(rates_by_name) == 1:
            return {"learning_rate": next(iter(rates_by_name.values()))}
        return {f"learning_rate/{x}" if x else "learning_rate": rate for x, rate in rates_by_name.items()}

    return rates


def _factors(update: Update, state: Any, scheduled: Callable[..., Any], outer: tuple[Update, ...]) -> Factors:
    """Return the factors by which a transformation multiplied the newest updates."""
    if update in outer:
        return {}
    variables = _variables(update)
    find = functools.partial(_factors, scheduled=scheduled, outer=(*outer, update))
    if _is_made_by(optax.scale, update):
        return {"": float(update(1.0, state)[0])}
    if _is_made_by(optax.scale_by_schedule, update) and isinstance(state, optax.ScaleByScheduleState):
        return {"": float(scheduled(update)(np.int32(max(np.asarray(state.count).item() - 1, 0))))}
    if _is_made_by(scale_by_path, update):
        return {"": 1.0, **dict(variables["factors"])}
    if "learning_rate" in getattr(state, "hyperparams", ()):
        return {"": -float(state.hyperparams["learning_rate"])}
    if parts := _chained(variables, state):
        return _chain_factors(parts, find)
    if branches := _branches(update, variables, state):
        return {
            "/".join(filter(None, (outer, inner))): factor
            for outer, branch in branches.items()
            for inner, factor in find(*branch).items()
        }
    return _wrapped_factors(variables, state, find)


def _chain_factors(parts: Sequence[tuple[Update, Any]], find: FindFactors) -> Factors:
    """Return the product of the factors of a chain's parts, or no factors if the learning rate is ambiguous.

    A factor before a complete optimizer scales the gradients, and does not change the updates of Adam, for
    example. If a part with a state stands between a factor and the part that makes the updates negative, the
    factor may or may not change the updates. A single factor of -1 is only a sign, not a learning rate.
    """
    total: Factors = {}
    num_found, is_plain, has_state_between = 0, False, False
    for update, state in parts:
        factors = find(update, state)
        if not factors:
            has_state_between |= bool(total) and bool(jax.tree.leaves(state))
            continue
        num_found, is_plain = num_found + 1, isinstance(state, optax.EmptyState | optax.ScaleByScheduleState)
        negates = all(map(_is_negative, factors.values())) and not any(map(_is_negative, total.values()))
        if negates and is_plain and has_state_between:
            return {}
        total = factors if negates and not is_plain else _product(total, factors)
    return {} if (num_found, is_plain, total) == (1, True, {"": -1.0}) else total


def _wrapped_factors(variables: Mapping[str, Any], state: Any, find: FindFactors) -> Factors:
    """Return the factors of the only transformation inside a wrapper, or no factors if there are several.

    The state of the inner transformation is the state of the wrapper, or a field of it.
    """
    inner = [value for value in variables.values() if _is_transformation(value)]
    places = (state, *state) if hasattr(state, "_fields") else (state,)
    candidates = (find(inner[0].update, inner_state) for inner_state in places) if len(inner) == 1 else ()
    return next(filter(None, candidates), {})


def _product(factors: Factors, other: Factors) -> Factors:
    """Return the products by name, or no factors if each side has names that the other side lacks."""
    if factors.keys() <= {""}:
        return {name: factors.get("", 1.0) * factor for name, factor in other.items()}
    if other.keys() == {""}:
        return {name: factor * other[""] for name, factor in factors.items()}
    return (
        {name: factor * other[name] for name, factor in factors.items()}
        if factors.keys() == other.keys()
        else {}
    )


def _chained(variables: Mapping[str, Any], state: Any) -> list[tuple[Update, Any]]:
    """Return the parts of an `optax.chain`, each with its state, or an empty list if it is not a chain."""
    for value in variables.values():
        if type(state) is tuple and isinstance(value, tuple) and len(value) == len(state):
            return list(zip(value, state, strict=True)) if all(map(callable, value)) else []
    return []


def _branches(update: Update, variables: Mapping[str, Any], state: Any) -> dict[str, tuple[Update, Any]]:
    """Return the optimizers of different parameters, by pattern or label, each with its state."""
    states = getattr(state, "inner_states", None)
    if isinstance(states, Mapping) and _is_made_by(by_path, update):
        rules = enumerate(variables["rules"])
        return {pattern: (optimizer.update, states[str(i)].inner_state) for i, (pattern, optimizer) in rules}
    for value in variables.values():
        if isinstance(states, Mapping) and isinstance(value, Mapping) and value.keys() == states.keys():
            return {
                str(label): (optimizer.update, states[label].inner_state)
                for label, optimizer in value.items()
            }
    return {}


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
    variables = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # the variable has no value yet
            variables[name] = cell.cell_contents
    return variables


def _is_negative(factor: float) -> bool:
    """Return whether a factor has a negative sign. At the start of a warm-up it is -0.0."""
    return math.copysign(1, factor) < 0
