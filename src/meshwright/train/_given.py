"""A state of which some arrays are there already, by name, and the rest is initialised."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import numpy as np

from meshwright import tree
from meshwright.errors import UsageError, nearest
from meshwright.sharding import Layout, copy_to, move_to
from meshwright.train._state import (
    Init,
    TrainState,
    abstract_state,
    computed,
    fresh_opt_state,
    fresh_variables,
)
from meshwright.train._trainable import Tx

Given = Mapping[str, Any]
"""Arrays of any sort by their names in a `TrainState`: `params/layers/0/q`, `opt_state/…`, `step`.

Instead of an array there may be a function, in JAX, that makes it of the one that is initialised there.
"""

Builder = Callable[[TrainState], Given]
"""Returns what to start from, given the state as structs with shardings. Called on all processes."""


def state_around(given: Given, init: Init, optimizer: Tx, seed: int, layout: Layout) -> TrainState:
    """Return a state that has the arrays `given`, and in all else is as `init_state` makes it.

    What is not given has the very values that it has when nothing is: `init` is traced whole, and what
    nobody needs of it is never computed. The optimizer's state is made for all parameters together.
    The arrays given are moved, not copied, where that will do: they are the state's from then on. One that
    is given under several names is copied for all but one of them, as each is donated. Collective.

    Raises:
      UsageError: listing all names that the state does not have, and arrays of other shapes or dtypes.
      LayoutError: as `init_state`.
    """
    return fill_state(abstract_state(init, optimizer, layout), given, init, optimizer, seed)


def fill_state(target: TrainState, given: Given, init: Init, optimizer: Tx, seed: int) -> TrainState:
    """Return what `state_around` does, for a state that is outlined already.

    Args:
      target: what `abstract_state` returns. A large model takes long to trace, so it is not traced again.
    """
    check_given(given, target)
    wanted = tree.named_leaves(target)
    arrays = {name: x for name, x in given.items() if not callable(x)}
    here, mesh = _moved(arrays, wanted), cast(Any, target.step.sharding).mesh

    def put(fresh: Mapping[str, Any]) -> None:
        """Take what is initialised, or what a function that is given makes of it."""
        made = {name: given[name](x) if name in given else x for name, x in fresh.items()}
        here.update({name: move_to(x, wanted[name].sharding) for name, x in made.items()})

    def fill(parts: tuple[str, ...], make: Callable[[Any], dict[str, Any]], argument: Any) -> None:
        """Make what is missing of these parts of the state, and nothing else."""
        whole = tree.named_leaves({part: getattr(target, part) for part in parts})
        missing = [name for name in whole if name not in here]
        if not missing:
            return
        shardings = {name: wanted[name].sharding for name in missing}

        def made(argument: Any) -> dict[str, jax.Array]:
            named = tree.named_leaves(make(argument))
            return {name: named[name] for name in missing}

        put(computed(made, shardings, mesh, argument))

    plain = {"step": np.int32(0), "seed": np.uint32(seed)}
    put({name: x for name, x in plain.items() if name not in arrays})
    fill(("params", "model_state"), lambda seed: vars(fresh_variables(init, seed)), here["seed"])
    params = tree.map_named(lambda name, _: here[f"params/{name}"], target.params)
    fill(("opt_state",), lambda params: {"opt_state": fresh_opt_state(optimizer, params)}, params)
    return tree.map_named(lambda name, _: here[name], target)


def check_given(given: Given, target: TrainState) -> None:
    """Check that all of `given` is something of the state `target`, of which only shapes and dtypes count.

    Raises:
      UsageError: listing all names that the state does not have, and arrays of other shapes or dtypes.
    """
    wanted = tree.named_leaves(target)
    problems = [_unknown(name, wanted) for name in given if name not in wanted]
    outcomes = {name: _outcome(x, wanted[name]) for name, x in given.items() if name in wanted}
    problems += [
        f"{name}: {np.shape(x)} {_dtype(x)} is given, {wanted[name].shape} {wanted[name].dtype} needed"
        for name, x in outcomes.items()
        if (np.shape(x), _dtype(x)) != (wanted[name].shape, wanted[name].dtype)
    ]
    if problems:
        raise UsageError("what is given does not fit the state of training:\n  " + "\n  ".join(problems))


def _moved(arrays: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return `arrays` where they are wanted, no two of them in the same memory."""
    movable = {id(x): name for name, x in arrays.items()}
    return {
        name: (move_to if movable[id(x)] == name else copy_to)(x, wanted[name].sharding)
        for name, x in arrays.items()
    }


def _outcome(given: Any, wanted: jax.ShapeDtypeStruct) -> Any:
    """Return the array given, or the shape and dtype of what a function returns."""
    return jax.eval_shape(given, wanted) if callable(given) else given


def _unknown(name: str, wanted: Mapping[str, Any]) -> str:
    close = nearest(name, wanted)
    return f"{name}: there is no such array" + (f"; did you mean {close}?" if close else "")


def _dtype(x: Any) -> np.dtype:
    return x.dtype if hasattr(x, "dtype") else jax.dtypes.canonicalize_dtype(np.asarray(x).dtype)
