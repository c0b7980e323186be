"""The training state between two steps. A restart needs only this and the position in the data."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Generic, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from typing_extensions import TypeVar

from meshwright.base._internal import (
    PyTree,
    collector_paused,
    documented,
    judge,
    mesh_of,
    size_text,
    tree,
    values_of,
)
from meshwright.errors import UsageError, did_you_mean
from meshwright.parallel._internal import Layout, copy_to, in_mesh, opt_state_shardings, place
from meshwright.processes import _internal as processes
from meshwright.training._ema import check_averages_are_last
from meshwright.training._keys import key_of
from meshwright.training._optimizers import init_optimizer
from meshwright.training._trainable import Tx, as_trainable, in_memory, tables_of

Params = TypeVar("Params", default=Any)
"""The type of the parameters, a pytree of arrays."""

LAST_STEP = 2**31 - 1
"""The largest step that a state can count, in an int32."""


def check_num_steps(name: str, steps: int) -> None:
    """Raise a `UsageError`, which begins with a name, if a state cannot count so many steps."""
    if steps > LAST_STEP:
        raise UsageError(f"{name} is {steps}; it must be at most {LAST_STEP}, as steps are counted in int32.")


@documented
@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Variables(Generic[Params]):
    """The arrays of a model that has a state besides its parameters.

    Example:
      >>> def init(key):
      ...     return mw.training.Variables(params={"w": jnp.ones(2)}, model_state={"mean": jnp.zeros(2)})
      >>> layout = mw.Layout(mw.make_mesh("data=-1"))
      >>> mw.parallel.leaf_names(mw.training.init_state(init, optax.sgd(0.1), 0, layout).model_state)
      ['mean']
    """

    params: Params
    """The parameters, which an optimizer changes."""
    model_state: PyTree
    """State that the loss takes and returns updated, such as batch statistics. It is not differentiated."""

    def __repr__(self) -> str:
        return f"Variables({_sizes_text(self, 'params', 'model_state')})"


Init = Callable[[jax.Array], Params | Variables[Params]]
"""A function that makes the parameters from a PRNG key, or `Variables` for a model with a state."""


class Model(Protocol):
    """An object with an `Init` as its method, such as the value that `mw.functional` returns."""

    def init(self, key: jax.Array, /) -> Any: ...


@documented
@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState(Generic[Params]):
    """The state of training: data only, so that two runs' states are one type to `jit`.

    Example:
      >>> layout = mw.Layout(mw.make_mesh("data=-1"))
      >>> mw.training.init_state(lambda key: {"w": jnp.zeros(2)}, optax.sgd(0.1), 0, layout)
      TrainState(step=0, params: 1 array of 8 B, opt_state: 0 arrays of 0 B, mesh data=8)
    """

    step: jax.Array
    """int32[]: updates made so far."""
    params: Params
    """All parameters, trained and frozen."""
    opt_state: optax.OptState
    """The optimizer's state."""
    seed: jax.Array
    """uint32[]: step i draws from `fold_in(key_of(seed), i)`. A plain number outlives key formats."""
    model_state: PyTree = None
    """The model's state, which the loss replaces; None if the model has none."""

    def replace(self, **changes: Any) -> Self:
        """Return the state with some fields changed: `state.replace(params=averaged)`.

        Raises:
          UsageError: There is no such field.
        """
        names = [field.name for field in fields(self)]
        for name in changes.keys() - set(names):
            hint = did_you_mean(name, names)
            raise UsageError(f"a TrainState has no field {name!r}.{hint}\n  It has {', '.join(names)}.")
        return replace(self, **changes)

    def __repr__(self) -> str:
        step = values_of(self.step)
        step_text = "?" if step is None or step.shape else step
        return f"TrainState(step={step_text}, {_sizes_text(self, 'params', 'opt_state', 'model_state')})"


def init_state(init: Init[Params] | Model, optimizer: Tx, seed: int, layout: Layout) -> TrainState[Params]:
    """Return a new state. Each array is made on the devices where `layout` places it.

    The values depend only on `seed`, but another mesh may round the last bit of some differently.

    Args:
      init: A function that makes the parameters, a pytree of arrays, from a PRNG key; see `Init`. Or a model
        of `mw.functional`.
      optimizer: An optax transformation for all parameters, or a `Trainable` for some of them.
      seed: The seed of the parameters and of the steps' random numbers, from 0 to 2**32 - 1.
      layout: The mesh, and the rules that split arrays over it.

    Raises:
      LayoutError: Some arrays do not fit the mesh. The message lists all of them.
      UsageError: No parameter is trained, or a trained one is not floating or complex; or some rules of the
        layout or the optimizer match nothing. The message lists all of them.

    Example:
      >>> layout = mw.Layout(mw.make_mesh("data=-1"))
      >>> state = mw.training.init_state(lambda key: {"w": jnp.zeros(2)}, optax.sgd(0.1), 0, layout)
      >>> int(state.step)
      0
    """
    shardings = _shardings(abstract_state(init, optimizer, layout))
    return computed(_make(init, optimizer), shardings, layout.mesh, np.uint32(seed))


def state_from(
    params: Params | Variables[Params], optimizer: Tx, seed: int, layout: Layout
) -> TrainState[Params]:
    """Return a new state with existing parameters: restored, pretrained or made by hand. Collective.

    The parameters are copied to where `layout` places them, so training does not change the caller's arrays.
    The errors are those of `init_state`.

    Args:
      params: The parameters, or the `Variables` of a model with a state, arrays as `copy_to` takes them.
      optimizer: An optax transformation for all parameters, or a `Trainable` for some of them.
      seed: The seed of the steps' random numbers, from 0 to 2**32 - 1.
      layout: The mesh, and the rules that split arrays over it.

    Example:
      >>> layout = mw.Layout(mw.make_mesh("data=-1"))
      >>> mw.training.state_from({"w": np.ones(2)}, optax.sgd(0.1), 0, layout)
      TrainState(step=0, params: 1 array of 8 B, opt_state: 0 arrays of 0 B, mesh data=8)
    """
    with collector_paused():
        state = jax.eval_shape(lambda params: _fresh(params, optimizer, jnp.uint32(seed)), params)
    target = _placed(state, optimizer, layout)
    shardings = _shardings(target)
    variables = _variables(params)
    copied = copy_to(variables.params, shardings.params)
    opt_state = computed(partial(fresh_opt_state, optimizer), shardings.opt_state, layout.mesh, copied)
    step, seed_array = copy_to(np.int32(0), shardings.step), copy_to(np.uint32(seed), shardings.seed)
    model_state = copy_to(variables.model_state, shardings.model_state)
    return TrainState(step, copied, opt_state, seed_array, model_state)


def abstract_state(init: Init[Params] | Model, optimizer: Tx, layout: Layout) -> TrainState[Params]:
    """Return the state as `ShapeDtypeStruct`s with shardings. Allocates and compiles nothing.

    The arguments and errors are those of `init_state`.

    Example:
      >>> layout = mw.Layout(mw.make_mesh("data=-1"))
      >>> target = mw.training.abstract_state(lambda key: {"w": jnp.zeros(2)}, optax.sgd(0.1), layout)
      >>> target.params["w"].shape
      (2,)
    """
    with in_mesh(layout.mesh), collector_paused():
        state = jax.eval_shape(_make(init, optimizer), jax.ShapeDtypeStruct((), jnp.uint32))
    return _placed(state, optimizer, layout)


def computed(make: Callable[..., Any], shardings: PyTree, mesh: Mesh, *arguments: PyTree) -> Any:
    """Return `make(*arguments)`, computed on the mesh with each array made where `shardings` place it."""
    with in_mesh(mesh):
        with collector_paused():
            traced = jax.jit(make, out_shardings=shardings).trace(*arguments)
        if processes.spans_all_processes(mesh.devices.flat):
            processes.compare("what makes the first state", lambda: processes.text_of_values(traced))
        with collector_paused():
            lowered = traced.lower()
        return lowered.compile()(*arguments)


def _make(init: Init | Model, optimizer: Tx) -> Callable[[jax.Array], TrainState]:
    return lambda seed: _fresh(fresh_variables(init, seed), optimizer, seed)


def _sizes_text(value: TrainState | Variables, *parts: str) -> str:
    """Return the sizes of the parts of a state, and the mesh that it is on."""
    sizes = [f"{name}: {size_text(part)}" for name in parts if (part := getattr(value, name)) is not None]
    mesh = mesh_of(value.params)
    return ", ".join(sizes if mesh is None else [*sizes, f"mesh {mesh}"])


def as_init(model: Init | Model) -> Init:
    """Return the function that makes the parameters, which a model has as a method."""
    return model if callable(model) else model.init


def fresh_variables(init: Init | Model, seed: jax.Array) -> Variables:
    """Return the variables that `init` makes from a seed."""
    return _variables(as_init(init)(key_of(seed)))


def fresh_opt_state(optimizer: Tx, params: PyTree) -> optax.OptState:
    """Return the optimizer's first state, of the parameters that it trains."""
    only = as_trainable(optimizer)
    return init_optimizer(only.optimizer, only.split(params)[0])


def _fresh(params: PyTree | Variables, optimizer: Tx, seed: jax.Array) -> TrainState:
    variables = _variables(params)
    opt_state = fresh_opt_state(optimizer, variables.params)
    return TrainState(jnp.zeros((), jnp.int32), variables.params, opt_state, seed, variables.model_state)


def _variables(params: PyTree | Variables) -> Variables:
    return params if isinstance(params, Variables) else Variables(params, None)


def _placed(state: TrainState, optimizer: Tx, layout: Layout) -> TrainState:
    variables = {"params": state.params, "model_state": state.model_state}
    check_averages_are_last(state.opt_state)
    # All tables at once: a user who renames parameters may have to change several.
    judge({**layout.tables(tree.leaf_names(variables)), **tables_of(optimizer, variables, state.opt_state)})
    model = layout.shardings(variables)
    opt_state = opt_state_shardings(state.opt_state, state.params, model["params"])
    opt_state = in_memory(as_trainable(optimizer).opt_state_memory, state.opt_state, opt_state)
    whole: Any = layout.replicated
    return place(state, replace(state, step=whole, seed=whole, opt_state=opt_state, **model))


def _shardings(target: TrainState) -> Any:
    return jax.tree.map(lambda x: x.sharding, target)
