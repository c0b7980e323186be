"""The learning rates of an optimizer, as far as its parts show them.

An optax optimizer has no learning rate that could be asked for: `optax.adam(1e-3)` is a chain of functions,
and the last one multiplies by -1e-3. So the rate is found from those parts and their state:

    optax.scale, optax.scale_by_schedule   the factor that they multiplied the newest update by
    optax.inject_hyperparams               the "learning_rate" in its state
    optax.chain                            the product of its parts' factors
    mw.train.by_path, optax.partition            a rate for each of their optimizers
    mw.train.scale_by_path                       a rate for each of its patterns
    what holds one other optimizer         the rate of that one: masks, guards, optax.MultiSteps

A schedule is asked for the update that was made last, by the count in its own state: updates that were
skipped, and micro-steps of `optax.MultiSteps`, do not count. Nothing is told of other transformations, nor
where a chain may mean two things.
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

from meshwright.train._by_path import by_path, scale_by_path
from meshwright.train._trainable import Tx, as_trainable

Rates = dict[str, float]
Factors = dict[str, float]
"""By what updates are multiplied, by path or label; "" stands for all others."""
Update = Callable[..., Any]
"""The `update` of an optax transformation."""
Within = Callable[[Update, Any], Factors]
"""Returns the factors of a transformation inside another, given its state."""


def learning_rates(optimizer: Tx) -> Callable[[optax.OptState], Rates]:
    """Return a function from the optimizer's state to the learning rates of the update made last.

    That is `{"learning_rate": 0.001}`; of an optimizer by path `learning_rate/` and the pattern, for each;
    and nothing where no rate is to be found.
    """
    scheduled = functools.cache(_scheduled)

    def rates(opt_state: optax.OptState) -> Rates:
        factors = _factors(as_trainable(optimizer).optimizer.update, opt_state, scheduled, ())
        found = {name: -factor for name, factor in factors.items() if _is_downhill(factor)}
        if len(found) == 1:
            return {"learning_rate": next(iter(found.values()))}
        return {f"learning_rate/{name}" if name else "learning_rate": rate for name, rate in found.items()}

    return rates


def _factors(update: Update, state: Any, scheduled: Callable[..., Any], outer: tuple[Update, ...]) -> Factors:
    """Return by what a transformation multiplied the newest updates.

    Args:
      scheduled: makes of an `optax.scale_by_schedule` the function from a count to its factor.
      outer: the transformations around this one.
    """
    if update in outer:
        return {}
    shown = _variables(update)
    within = functools.partial(_factors, scheduled=scheduled, outer=(*outer, update))
    if _is_made_by(optax.scale, update):
        return {"": float(update(1.0, state)[0])}
    if _is_made_by(optax.scale_by_schedule, update) and isinstance(state, optax.ScaleByScheduleState):
        return {"": float(scheduled(update)(np.int32(max(np.asarray(state.count).item() - 1, 0))))}
    if _is_made_by(scale_by_path, update):
        return {"": 1.0, **dict(shown["factors"])}
    if "learning_rate" in getattr(state, "hyperparams", ()):
        return {"": -float(state.hyperparams["learning_rate"])}
    if parts := _chained(shown, state):
        return _of_chain(parts, within)
    if branches := _branches(update, shown, state):
        return _by_name({name: within(*branch) for name, branch in branches.items()})
    return _of_held(shown, state, within)


def _of_chain(parts: Sequence[tuple[Update, Any]], within: Within) -> Factors:
    """Return the product of the factors of a chain's parts; none where it could mean two things.

    What stands before a whole optimizer scales gradients, of which Adam, say, takes no notice. Where a
    factor and the one that turns updates downhill have a memory between them, it may do the same or not.
    A lone -1 is a sign, and no rate.
    """
    total: Factors = {}
    num_found, is_mere, is_behind_memory = 0, False, False
    for update, state in parts:
        found = within(update, state)
        if not found:
            is_behind_memory |= bool(total) and bool(jax.tree.leaves(state))
            continue
        num_found, is_mere = num_found + 1, isinstance(state, optax.EmptyState | optax.ScaleByScheduleState)
        turns = all(map(_is_downhill, found.values())) and not any(map(_is_downhill, total.values()))
        if turns and is_mere and is_behind_memory:
            return {}
        total = found if turns and not is_mere else _product(total, found)
    return {} if (num_found, is_mere, total) == (1, True, {"": -1.0}) else total


def _of_held(shown: Mapping[str, Any], state: Any, within: Within) -> Factors:
    """Return the factors of the one transformation that another holds, with its state in that one's."""
    held = [value for value in shown.values() if _is_transformation(value)]
    places = (state, *state) if hasattr(state, "_fields") else (state,)
    found = (within(held[0].update, place) for place in places) if len(held) == 1 else ()
    return next(filter(None, found), {})


def _product(one: Factors, other: Factors) -> Factors:
    """Return the products by name; none if each has names that the other lacks."""
    if one.keys() <= {""}:
        return {name: one.get("", 1.0) * factor for name, factor in other.items()}
    if other.keys() == {""}:
        return {name: factor * other[""] for name, factor in one.items()}
    return {name: factor * other[name] for name, factor in one.items()} if one.keys() == other.keys() else {}


def _chained(shown: Mapping[str, Any], state: Any) -> list[tuple[Update, Any]]:
    """Return the parts of an `optax.chain`, each with its state; none of anything else."""
    for value in shown.values():
        if type(state) is tuple and isinstance(value, tuple) and len(value) == len(state):
            return list(zip(value, state, strict=True)) if all(map(callable, value)) else []
    return []


def _branches(update: Update, shown: Mapping[str, Any], state: Any) -> dict[str, tuple[Update, Any]]:
    """Return optimizers of different parameters by pattern or label, each with its state."""
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
    """Return the function from the number of updates before to the factor of an `optax.scale_by_schedule`."""
    return jax.jit(lambda count: update(jnp.float32(1), optax.ScaleByScheduleState(count))[0])


def _is_made_by(factory: Callable[..., Any], function: Update) -> bool:
    made_in = getattr(function, "__qualname__", "").partition(".<locals>")[0]
    return made_in == factory.__qualname__ and function.__module__ == factory.__module__


def _is_transformation(value: Any) -> bool:
    return callable(getattr(value, "init", None)) and callable(getattr(value, "update", None))


def _variables(function: Update) -> Mapping[str, Any]:
    """Return the variables that a function closes over, or the attributes of the object it belongs to."""
    if (owner := getattr(function, "__self__", None)) is not None:
        return getattr(owner, "__dict__", {})
    if not isinstance(function, types.FunctionType):
        return {}
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # the variable has no value yet
            found[name] = cell.cell_contents
    return found


def _is_downhill(factor: float) -> bool:
    """Return whether a factor turns updates downhill. At the start of a warm-up it is -0.0."""
    return math.copysign(1, factor) < 0
