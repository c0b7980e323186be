"""What a run is made of between two steps. With the data's position it is all that a restart needs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from meshwright import tree
from meshwright.errors import UsageError
from meshwright.sharding import Layout, beside_params, place

PyTree = Any
Init = Callable[[jax.Array], PyTree]
"""Makes the parameters from a PRNG key."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Variables:
    """What a model that carries more than parameters is made of."""

    params: PyTree
    """What the optimizer moves."""
    model_state: PyTree
    """What the model itself moves: the statistics of batch normalisation, for one."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """The state of training: data only, so that two runs' states are one type to `jit`."""

    step: jax.Array
    """int32[]: updates made so far."""
    params: PyTree
    """What the optimizer moves."""
    opt_state: optax.OptState
    """The optimizer's memory."""
    seed: jax.Array
    """uint32[]: step i draws from `fold_in(key(seed), i)`. A plain number outlives key formats."""


def init_state(init: Init, tx: optax.GradientTransformation, seed: int, layout: Layout) -> TrainState:
    """Return a fresh state, each array born on the devices where `layout` puts it.

    The values depend on `seed` alone; another mesh may round the last bit of some differently.

    Raises:
      LayoutError: listing all arrays that do not fit the mesh.
      UsageError: a parameter is not of a floating or complex type.
    """
    target = abstract_state(init, tx, layout)
    shardings = jax.tree.map(lambda x: x.sharding, target)
    with jax.set_mesh(layout.mesh):
        return jax.jit(_make(init, tx), out_shardings=shardings)(np.uint32(seed))


def abstract_state(init: Init, tx: optax.GradientTransformation, layout: Layout) -> TrainState:
    """Return the state as `ShapeDtypeStruct`s with shardings. Allocates and compiles nothing.

    Raises: as `init_state`.
    """
    with jax.set_mesh(layout.mesh):
        state = jax.eval_shape(_make(init, tx), jax.ShapeDtypeStruct((), jnp.uint32))
    _check_params(state.params)
    params = layout.shardings({"params": state.params})["params"]
    opt_state = beside_params(state.opt_state, state.params, params)
    shardings = replace(
        state, step=layout.replicated, params=params, opt_state=opt_state, seed=layout.replicated
    )
    return place(state, shardings)


def _make(init: Init, tx: optax.GradientTransformation) -> Callable[[jax.Array], TrainState]:
    def make(seed: jax.Array) -> TrainState:
        params = init(jax.random.key(seed))
        return TrainState(jnp.zeros((), jnp.int32), params, tx.init(params), seed)

    return make


def _check_params(params: PyTree) -> None:
    if not jax.tree.leaves(params):
        raise UsageError("the model has no parameters: it returned a tree without arrays.")
    fixed = [
        f"params/{name} is {x.dtype}"
        for name, x in tree.named_leaves(params).items()
        if not jnp.issubdtype(x.dtype, jnp.inexact)
    ]
    if fixed:
        raise UsageError(
            f"parameters must be floating, but {', '.join(fixed)}.\n"
            "  Keep constants out of the parameters: close the loss over them, or put them in the batch."
        )
