"""Make a training state from arrays by name, and initialise the rest."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import numpy as np

from meshwright.base._internal import PyTree, tree
from meshwright.errors import UsageError, did_you_mean
from meshwright.parallel._internal import Layout, check_equal, copy_to, move_to
from meshwright.training._state import (
    Init,
    Model,
    TrainState,
    abstract_state,
    computed,
    fresh_opt_state,
    fresh_variables,
)
from meshwright.training._trainable import Tx

InitialArrays = Mapping[str, Any]
"""Arrays by their names in a `TrainState`: `params/layers/0/q`, `opt_state/…`, `step`.

A value may be an array of any library. It may also be a JAX function that takes the initialised array and
returns the array to use instead.
"""

Builder = Callable[[TrainState], InitialArrays]
"""A function that takes the state as structs with shardings and returns the arrays to start from.

All processes call it.
"""


def state_around(
    arrays: InitialArrays, init: Init | Model, optimizer: Tx, seed: int, layout: Layout
) -> TrainState:
    """Return a state with the given `arrays`. The rest has the values that `init_state` computes.

    The given arrays do not change the values of the rest: `init` is traced completely, but only the missing
    arrays are computed. The optimizer's state is made for all parameters together. Collective.

    Given arrays are moved to the devices without a copy if possible, so do not use them afterwards. If one
    array has several names, all but one of them get a copy, because a step donates each array.

    Args:
      arrays: The arrays to start from, by name.
      init: The function that initialises the model, as for `init_state`.
      optimizer: The optimizer.
      seed: The seed of the initialisation and of the training.
      layout: The mesh and the sharding rules.

    Raises:
      UsageError: A name is not in the state, or an array has the wrong shape or dtype. The message lists all
        of them.
      LayoutError: A sharding does not fit an array or the mesh, as for `init_state`.

    Example:
      >>> layout = mw.Layout(mw.make_mesh("data=-1"))
      >>> init = lambda key: {"body": jnp.zeros(2), "head": jnp.zeros(2)}
      >>> state = mw.training.state_around({"params/body": jnp.ones(2)}, init, optax.sgd(0.1), 0, layout)
      >>> print(state.params["body"], state.params["head"])
      [1. 1.] [0. 0.]
    """
    return fill_state(abstract_state(init, optimizer, layout), arrays, init, optimizer, seed)


def fill_state(
    target: TrainState, initial: InitialArrays, init: Init | Model, optimizer: Tx, seed: int
) -> TrainState:
    """Return the same state as `state_around`, for an abstract state that exists already."""
    check_given(initial, target)
    targets = tree.named_leaves(target)
    arrays = {name: x for name, x in initial.items() if not callable(x)}
    check_equal(tree.nested(arrays), [target.step.sharding])
    placed, mesh = _moved(arrays, targets), cast(Any, target.step.sharding).mesh

    def put(fresh: Mapping[str, Any]) -> None:
        """Store initialised arrays. If a name has a function, store the result of the function instead."""
        values = {name: initial[name](x) if name in initial else x for name, x in fresh.items()}
        placed.update({name: move_to(x, targets[name].sharding) for name, x in values.items()})

    def fill(parts: tuple[str, ...], make: Callable[[Any], dict[str, Any]], argument: Any) -> None:
        """Compute the missing arrays of these parts of the state, and no others."""
        whole = tree.named_leaves({part: getattr(target, part) for part in parts})
        missing = [name for name in whole if name not in placed]
        if not missing:
            return
        shardings = tree.nested({name: targets[name].sharding for name in missing})

        def missing_arrays(argument: Any) -> PyTree:
            named = tree.named_leaves(make(argument))
            return tree.nested({name: named[name] for name in missing})

        put(tree.named_leaves(computed(missing_arrays, shardings, mesh, argument)))

    plain = {"step": np.int32(0), "seed": np.uint32(seed)}
    put({name: x for name, x in plain.items() if name not in arrays})
    fill(("params", "model_state"), lambda seed: vars(fresh_variables(init, seed)), placed["seed"])
    params = tree.map_named(lambda name, _: placed[f"params/{name}"], target.params)
    fill(("opt_state",), lambda params: {"opt_state": fresh_opt_state(optimizer, params)}, params)
    return tree.map_named(lambda name, _: placed[name], target)


def check_given(initial: InitialArrays, target: TrainState) -> None:
    """Check that the initial arrays match the names, shapes and dtypes of the state `target`."""
    targets = tree.named_leaves(target)
    unknown = [name for name in initial if name not in targets]
    problems = [f"{name}: the state has no such array.{did_you_mean(name, targets)}" for name in unknown]
    outcomes = {
        name: jax.eval_shape(x, targets[name]) if callable(x) else x
        for name, x in initial.items()
        if name in targets
    }
    problems += [
        f"{name}: expected shape {targets[name].shape}, {targets[name].dtype}; "
        f"found shape {np.shape(x)}, {_dtype(x)}"
        for name, x in outcomes.items()
        if (np.shape(x), _dtype(x)) != (targets[name].shape, targets[name].dtype)
    ]
    if problems:
        raise UsageError("these arrays do not match the training state:\n  " + "\n  ".join(problems))


def _moved(arrays: Mapping[str, Any], targets: Mapping[str, Any]) -> dict[str, Any]:
    """Return `arrays` with the shardings of the targets. No two of the results share memory."""
    movable = {id(x): name for name, x in arrays.items()}
    return {
        name: (move_to if movable[id(x)] == name else copy_to)(x, targets[name].sharding)
        for name, x in arrays.items()
    }


def _dtype(x: Any) -> np.dtype:
    return x.dtype if hasattr(x, "dtype") else jax.dtypes.canonicalize_dtype(np.asarray(x).dtype)
