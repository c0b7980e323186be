"""Optimizers that train some of the parameters and freeze the others."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import jax
import optax
from jax.sharding import Mesh, NamedSharding

from meshwright.base._internal import PyTree, Table, compiled, documented, tree, value_of
from meshwright.errors import UsageError
from meshwright.parallel._internal import SPLITTING_STATE
from meshwright.training._by_path import ByPath, tables_in

Chosen = str | Callable[[str, jax.ShapeDtypeStruct], bool]
"""A pattern (see `meshwright.base._patterns`) or a function `(name, array) -> bool`.

Names have the form `params/layers/0/q`.
"""


@documented
@dataclass(frozen=True)
class Trainable:
    """An optimizer of some parameters: `Trainable("lora_[ab]", optax.adamw(1e-4))`. The others are frozen.

    Use it instead of an optax transformation in `init_state`, `state_from`, `abstract_state` and `make_step`.
    It must be the outermost optimizer: do not put it inside another one. Frozen parameters may have any
    dtype, are not differentiated, and do not change in any bit. The inner optimizer does not see them: its
    parameters, gradients and state have None in their places.

    Raises:
      UsageError: The pattern is not a regular expression.

    Example:
      >>> optimizer = mw.training.Trainable("lora_[ab]", optax.sgd(0.1))
      >>> trained, frozen = optimizer.split({"lora_a": jnp.ones(()), "w": jnp.ones(())})
      >>> trained["w"] is None
      True
    """

    trainable: Chosen
    """A pattern that matches the names of the parameters to train, or a function `(name, array) -> bool`."""
    optimizer: optax.GradientTransformation
    """The optimizer of the trained parameters."""
    updatable: Chosen = ".*"
    """A pattern or function for the arrays of the model state, `model_state/norm/mean`, that may change."""
    opt_state_memory: str | None = None
    """The memory that holds the optimizer's state between steps. None means the devices' default."""

    def __post_init__(self) -> None:
        for name, chosen in (("trainable", self.trainable), ("updatable", self.updatable)):
            Table(name, (chosen,) if isinstance(chosen, str) else ())

    def split(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Return two trees: the trained parameters and the frozen ones. Each has None in the other's places.

        Args:
          params: The parameters, as arrays, structs or tracers.

        Raises:
          UsageError: No parameter is trained, or a trained parameter has no floating or complex dtype.
        """
        chosen = _chosen(self.trainable, "params", params)
        _check_chosen(self.trainable, params, chosen)
        trained = jax.tree.map(lambda x, train: x if train else None, params, chosen)
        frozen = jax.tree.map(lambda x, train: None if train else x, params, chosen)
        return trained, frozen

    def updated(self, model_state: PyTree, new: PyTree) -> PyTree:
        """Return a model state with the selected leaves of `new` and the other leaves of `model_state`."""
        chosen = _chosen(self.updatable, "model_state", model_state)
        return jax.tree.map(lambda update, old, x: x if update else old, chosen, model_state, new)


UpdateRule = Literal["none", "optimizer", "state", "all"]
"""The parts of a step that may change an array: nothing, the optimizer, the model state that the loss
returns, or both."""


@dataclass(frozen=True)
class AllowedBy:
    """A function that returns, for each array, whether the rules let `updater` change it."""

    updater: UpdateRule
    rules: ByPath[UpdateRule]

    def __post_init__(self) -> None:
        self.table()

    def __call__(self, name: str, x: jax.ShapeDtypeStruct) -> bool:
        return value_of(self.rules, name, "all") in (self.updater, "all")

    def table(self) -> Table:
        return Table.of("update_rules", self.rules)


def update_rules(rules: ByPath[UpdateRule], optimizer: optax.GradientTransformation) -> Trainable:
    """Return `optimizer` limited by rules that say what may change an array: `[("encoder/.*", "none")]`.

    The first rule that matches a name decides. Rules match the names of parameters, such as
    `params/encoder/norm/scale`, and of the model state, such as `model_state/encoder/norm/mean`. The rule
    above therefore also freezes the batch statistics. An array that no rule matches has the rule "all".

    Args:
      rules: Pairs of a pattern and a rule: "none", "optimizer", "state" or "all".
      optimizer: The optimizer of the parameters that it may change.

    Raises:
      UsageError: A pattern is not a regular expression, or a rule is unknown.

    Example:
      >>> optimizer = mw.training.update_rules([("encoder/.*", "none")], optax.sgd(0.1))
      >>> trained, _ = optimizer.split({"encoder": {"w": jnp.ones(())}, "head": jnp.ones(())})
      >>> trained["encoder"]["w"] is None
      True
    """
    unknown = [rule for _, rule in rules if rule not in get_args(UpdateRule)]
    if unknown:
        raise UsageError(
            f"unknown update rule {unknown[0]!r}; expected one of {', '.join(get_args(UpdateRule))}."
        )
    rules = tuple(rules)
    return Trainable(AllowedBy("optimizer", rules), optimizer, AllowedBy("state", rules))


def offload_opt_state(
    optimizer: optax.GradientTransformation | Trainable, memory: str = "pinned_host"
) -> Trainable:
    """Return `optimizer` with its state kept in the host's memory between steps.

    The state keeps its sharding. It is copied to the devices for each update, which takes time. Use this
    function if the freed device memory makes a larger batch or model possible.

    Unproven: never run on GPUs and TPUs, whose hosts have a memory of their own.

    Args:
      optimizer: The optimizer whose state is kept in another memory.
      memory: The kind of memory, as JAX calls it.

    Raises (when a state is described or made):
      UsageError: The devices do not have this kind of memory.

    Example:
      >>> layout = mw.Layout(mw.make_mesh("data=-1"))
      >>> optimizer = mw.training.offload_opt_state(optax.adam(1e-3))
      >>> state = mw.training.init_state(lambda key: {"w": jnp.zeros(2)}, optimizer, 0, layout)
      >>> jax.tree.leaves(state.opt_state)[-1].sharding.memory_kind
      'pinned_host'
    """
    return replace(as_trainable(optimizer), opt_state_memory=memory)


Tx = optax.GradientTransformation | Trainable
"""An optimizer: an optax transformation for all parameters, or a `Trainable` for some."""


def as_trainable(optimizer: Tx) -> Trainable:
    """Return `optimizer` as a `Trainable`. An optax transformation trains all parameters."""
    inner = optimizer.optimizer if isinstance(optimizer, Trainable) else optimizer
    if not hasattr(inner, "init"):
        raise UsageError(
            f"the optimizer must be an optax transformation, but it is of type {type(inner).__name__}. Give "
            "optax.adamw(1e-3) itself, not nnx.Optimizer(model, …) and not a function that makes it."
        )
    return optimizer if isinstance(optimizer, Trainable) else Trainable(_everything, optimizer)


def frozen_names(optimizer: Tx, params: PyTree, model_state: PyTree = None) -> list[str]:
    """Return the names of the arrays that no step changes, such as `params/encoder/w`."""
    only = as_trainable(optimizer)
    changes = _chosen(only.updatable, "model_state", model_state)
    fixed = jax.tree.map(lambda x, change: None if change else x, model_state, changes)
    return tree.leaf_names({"params": only.split(params)[1], "model_state": fixed})


def tables_of(optimizer: Tx, variables: PyTree, opt_state: optax.OptState) -> dict[Table, list[str]]:
    """Return the pattern tables of an optimizer, each with the names that it applies to.

    The result is the argument of `patterns.judge`. Tables such as that of `by_path` apply to the trained
    parameters.
    """
    only = as_trainable(optimizer)
    trained = tree.leaf_names({"params": only.split(variables["params"])[0]})
    names = dict.fromkeys(tables_in(opt_state), trained)
    if isinstance(only.trainable, AllowedBy):
        names[only.trainable.table()] = tree.leaf_names(variables)
    if isinstance(only.updatable, str):
        state = tree.leaf_names({"model_state": variables["model_state"]})
        names[Table("updatable", (only.updatable,))] = state
    return names


def joined(trained: PyTree, frozen: PyTree) -> PyTree:
    """Return the whole tree of parameters, from the two trees that `Trainable.split` returns."""
    return jax.tree.map(lambda t, f: f if t is None else t, trained, frozen, is_leaf=lambda x: x is None)


def _everything(name: str, x: jax.ShapeDtypeStruct) -> bool:
    return True


def _chosen(chosen: Chosen, prefix: str, arrays: PyTree) -> PyTree:
    """Return a tree of booleans with the structure of `arrays`: True where an array is chosen."""

    def is_chosen(name: str, x: Any) -> bool:
        if isinstance(chosen, str):
            return compiled(chosen)(f"{prefix}/{name}") is not None
        return chosen(f"{prefix}/{name}", jax.ShapeDtypeStruct(x.shape, x.dtype))

    return tree.map_named(is_chosen, arrays)


def _check_chosen(trainable: Chosen, params: PyTree, chosen: PyTree) -> None:
    leaves, trains = tree.named_leaves(params), jax.tree.leaves(chosen)
    if not leaves:
        raise UsageError("the model has no parameters: it returned a tree without arrays.")
    if not any(trains):
        some = ", ".join(f"params/{name}" for name in list(leaves)[:8]) + (" …" if len(leaves) > 8 else "")
        raise UsageError(
            f"nothing to train: trainable={trainable!r} matches none of {len(leaves)} parameters: {some}.\n"
            "  A pattern must match a whole name or its last components."
        )
    fixed = [
        f"params/{name} is {x.dtype}"
        for (name, x), train in zip(leaves.items(), trains, strict=True)
        if train and not jax.numpy.issubdtype(x.dtype, jax.numpy.inexact)
    ]
    if fixed:
        raise UsageError(
            f"trained parameters must have a floating dtype, but {', '.join(fixed)}.\n"
            "  Use `Trainable(pattern, optimizer)` to train only the others, or move constants out of the "
            "parameters: put them in the batch, or in a closure of the loss."
        )


def in_memory(kind: str | None, arrays: PyTree, shardings: PyTree) -> PyTree:
    """Return `shardings` in another memory. Scalars stay on the devices, because they need little memory."""
    if kind is None:
        return shardings

    def with_memory(x: jax.ShapeDtypeStruct, sharding: NamedSharding) -> NamedSharding:
        # An abstract mesh has no devices to check.
        if isinstance(sharding.mesh, Mesh):
            _check_memory(kind, sharding.mesh.local_devices[0])
        return sharding.with_memory_kind(kind) if x.ndim else sharding

    return jax.tree.map(with_memory, arrays, shardings)


def on_devices(arrays: PyTree) -> PyTree:
    """Return `arrays` in the devices' memory, with the same shardings. Arrays there are not copied."""
    return jax.device_put(arrays, jax.memory.Space.Device)


def _check_memory(kind: str, device: jax.Device) -> None:
    kinds = [memory.kind for memory in device.addressable_memories()]
    # A description of a device that is not here has none.
    if kinds and kind not in kinds:
        raise UsageError(
            f"the optimizer's state cannot be kept in memory {kind!r}: {device.platform} "
            f"({device.device_kind}) has {', '.join(kinds)}.\n  Keep it on the devices: leave out "
            f"`offload_opt_state`. If it does not fit, take {SPLITTING_STATE}."
        )
