"""Optimizers that train some of the parameters and freeze the others."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import jax
import optax

from meshwright import tree
from meshwright.docstrings import documented
from meshwright.errors import UsageError
from meshwright.patterns import Table, compiled, value_of
from meshwright.train._by_path import ByPath, tables_in
from meshwright.tree import PyTree

Chosen = str | Callable[[str, jax.ShapeDtypeStruct], bool]
"""A pattern, see `meshwright.patterns`, or `(name, array) -> bool`; names are `params/layers/0/q`."""


@documented
@dataclass(frozen=True)
class Trainable:
    """An optimizer of some parameters: `Trainable("lora_[ab]", optax.adamw(1e-4))`. The others are frozen.

    It goes wherever an optax transformation does: to `init_state`, `state_from`, `abstract_state` and
    `make_step`, and is the outermost. Frozen parameters are of any dtype, are not differentiated, and stay
    as they are to the bit. The optimizer knows nothing of them: what it is given, and its state, is the tree
    of parameters with None in their places.

    Raises:
      UsageError: the pattern is not a regular expression.

    Example:
      >>> optimizer = mw.Trainable("lora_[ab]", optax.sgd(0.1))
      >>> trained, frozen = optimizer.split({"lora_a": jnp.ones(()), "w": jnp.ones(())})
      >>> trained["w"] is None
      True
    """

    trainable: Chosen
    """A pattern of the names of the parameters to train, or a function of a name."""
    optimizer: optax.GradientTransformation
    """The optimizer of those that are trained."""
    updatable: Chosen = ".*"
    """As `trainable`, for the leaves of the model state, `model_state/norm/mean`, that the loss updates."""
    opt_state_memory: str | None = None
    """The memory where the optimizer's state is kept between steps; None: the devices' own."""

    def __post_init__(self) -> None:
        for name, chosen in (("trainable", self.trainable), ("updatable", self.updatable)):
            Table(name, (chosen,) if isinstance(chosen, str) else ())

    def split(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Return `params` (arrays, structs or tracers) twice, with None where frozen, and where trained.

        Raises:
          UsageError: nothing is left to train, or something to train is not of a floating or complex type.
        """
        chosen = _chosen(self.trainable, "params", params)
        _check_chosen(self.trainable, params, chosen)
        trained = jax.tree.map(lambda x, train: x if train else None, params, chosen)
        frozen = jax.tree.map(lambda x, train: None if train else x, params, chosen)
        return trained, frozen

    def updated(self, model_state: PyTree, new: PyTree) -> PyTree:
        """Return `new`, of the leaves that are updated, and `model_state`, of the others."""
        chosen = _chosen(self.updatable, "model_state", model_state)
        return jax.tree.map(lambda update, old, x: x if update else old, chosen, model_state, new)


UpdateRule = Literal["none", "optimizer", "state", "all"]
"""Who may change an array: nobody, the optimizer, the loss's new model state, or both."""


@dataclass(frozen=True)
class Allowed:
    """Tells for each array if the rules let the optimizer, or the new model state, change it."""

    by: UpdateRule
    rules: ByPath[UpdateRule]

    def __post_init__(self) -> None:
        self.table()

    def __call__(self, name: str, x: jax.ShapeDtypeStruct) -> bool:
        return value_of(self.rules, name, "all") in (self.by, "all")

    def table(self) -> Table:
        return Table.of("update_rules", self.rules)


def update_rules(rules: ByPath[UpdateRule], optimizer: optax.GradientTransformation) -> Trainable:
    """Return `optimizer` for what the first rule that matches lets it move: `[("encoder/.*", "none")]`.

    Names are those of parameters, `params/encoder/norm/scale`, and of the model state,
    `model_state/encoder/norm/mean`: so "none" above holds batch statistics, too. Without a match, "all".

    Raises:
      UsageError: a pattern is not a regular expression, or a rule is none of the four.

    Example:
      >>> optimizer = mw.train.update_rules([("encoder/.*", "none")], optax.sgd(0.1))
      >>> trained, _ = optimizer.split({"encoder": {"w": jnp.ones(())}, "head": jnp.ones(())})
      >>> trained["encoder"]["w"] is None
      True
    """
    unknown = [rule for _, rule in rules if rule not in get_args(UpdateRule)]
    if unknown:
        raise UsageError(f"update rule {unknown[0]!r} is none of {', '.join(get_args(UpdateRule))}.")
    rules = tuple(rules)
    return Trainable(Allowed("optimizer", rules), optimizer, Allowed("state", rules))


def offload_opt_state(
    optimizer: optax.GradientTransformation | Trainable, memory: str = "pinned_host"
) -> Trainable:
    """Return `optimizer` with its state kept in the host's memory between steps, split as on the devices.

    It is fetched for each update, so it pays where what it frees lets a larger batch or model in.

    Raises (when a state is described or made):
      UsageError: the devices have no such memory.
    """
    return replace(as_trainable(optimizer), opt_state_memory=memory)


Tx = optax.GradientTransformation | Trainable
"""An optimizer: an optax transformation for all parameters, or a `Trainable` for some."""


def as_trainable(optimizer: Tx) -> Trainable:
    """Return `optimizer` as a `Trainable`: an optax transformation trains everything.

    Raises:
      UsageError: It is neither.
    """
    inner = optimizer.optimizer if isinstance(optimizer, Trainable) else optimizer
    if not hasattr(inner, "init"):
        raise UsageError(
            f"the optimizer must be an optax transformation, but it is of type {type(inner).__name__}. Give "
            "optax.adamw(1e-3) itself, not nnx.Optimizer(model, …) around it, nor a function that makes it."
        )
    return optimizer if isinstance(optimizer, Trainable) else Trainable(_everything, optimizer)


def frozen_names(optimizer: Tx, params: PyTree) -> list[str]:
    """Return the names of the parameters that are not trained, such as `params/encoder/w`.

    Args:
      optimizer: The optimizer.
      params: The parameters, or their structs.
    """
    return tree.leaf_names({"params": as_trainable(optimizer).split(params)[1]})


def tables_of(optimizer: Tx, variables: PyTree, opt_state: optax.OptState) -> dict[Table, list[str]]:
    """Return the tables of patterns of an optimizer with the names of what each is for, for `patterns.judge`.

    Optimizers by path are for the parameters that are trained.

    Args:
      variables: `{"params": …, "model_state": …}`.
      opt_state: the optimizer's state for these.
    """
    only = as_trainable(optimizer)
    trained = tree.leaf_names({"params": only.split(variables["params"])[0]})
    found = dict.fromkeys(tables_in(opt_state), trained)
    if isinstance(only.trainable, Allowed):
        found[only.trainable.table()] = tree.leaf_names(variables)
    if isinstance(only.updatable, str):
        state = tree.leaf_names({"model_state": variables["model_state"]})
        found[Table("updatable", (only.updatable,))] = state
    return found


def joined(trained: PyTree, frozen: PyTree) -> PyTree:
    """Return the parameters that were split into these."""
    return jax.tree.map(lambda t, f: f if t is None else t, trained, frozen, is_leaf=lambda x: x is None)


def _everything(name: str, x: jax.ShapeDtypeStruct) -> bool:
    return True


def _chosen(chosen: Chosen, prefix: str, arrays: PyTree) -> PyTree:
    """Return whether each of `arrays` is chosen, in a tree of their structure."""

    def one(name: str, x: Any) -> bool:
        if isinstance(chosen, str):
            return compiled(chosen)(f"{prefix}/{name}") is not None
        return chosen(f"{prefix}/{name}", jax.ShapeDtypeStruct(x.shape, x.dtype))

    return tree.map_named(one, arrays)


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
            f"parameters that are trained must be floating, but {', '.join(fixed)}.\n"
            "  Train the others only, with `Trainable(pattern, optimizer)`; or keep constants out of the "
            "parameters: close the loss over them, or put them in the batch."
        )
