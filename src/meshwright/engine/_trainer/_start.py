"""The arrays that training starts from: the given arrays, or the initial arrays of the model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from meshwright.base._internal import PyTree, tree
from meshwright.engine._adapters._functional import Functional
from meshwright.engine._deployer._batches import LrSchedule
from meshwright.engine._trainer._epochs import start_of
from meshwright.errors import MeshwrightError, UsageError
from meshwright.parallel._internal import Layout, as_arrays, copy_to
from meshwright.training._internal import (
    Init,
    TrainState,
    Tx,
    Variables,
    has_multi_steps,
    init_state,
    key_of,
    state_from,
)


class Start:
    """The first state of training. Its shapes and dtypes are known before it is made."""

    def __init__(
        self,
        model: Functional | None,
        params: PyTree,
        model_state: PyTree,
        opt_state: optax.OptState | None,
        last_ckpt_info: Mapping[str, Any] | None,
    ):
        _check(model, params, model_state, opt_state, last_ckpt_info)
        self._step = int((last_ckpt_info or {}).get("step", 0))
        last_epoch = (last_ckpt_info or {}).get("epoch_idx")
        self.position = None if last_epoch is None else start_of(int(last_epoch) + 1)
        """The position in the data to start from; None means the beginning."""
        self._values = _initial_values(model, params, model_state)
        self._opt_state, self._is_used = opt_state, False
        others = {"model_state": model_state, "opt_state": opt_state, "last_ckpt_info": last_ckpt_info}
        self._arguments = [name for name, x in {"params": params, **others}.items() if x is not None]
        self.init: Init = _zeros(self._values) if model is None or self._values is not None else model.init
        """Makes arrays with the right shapes and dtypes. They have initial values if none were given."""
        self.has_state = model.stateful if model else model_state is not None

    def outline(self) -> Variables:
        """Return the parameters and the model state as structs."""
        variables = jax.eval_shape(self.init, key_of(0))
        return variables if isinstance(variables, Variables) else Variables(variables, None)

    def state(self, tx: Tx, seed: int, layout: Layout) -> TrainState:
        """Return the first state, on the mesh. Call it once: the given arrays are copied and released."""
        if self._is_used:
            raise lost()
        state = self._new_state(tx, seed, layout)
        self._values, self._opt_state, self._is_used = None, None, True
        return state

    def origin(self) -> list[str]:
        """Return the given arrays that the first state is made from, and their step, in at most one text."""
        names = [name for name in self._arguments if name != "last_ckpt_info"]
        suffix = f", after step {self._step}" if self._step else ""
        return [f"the given {' and '.join(names)}{suffix}"] if names else []

    def give_way(self, newest: int) -> str | None:
        """Return a message that the given arrays are not used, or None if none were given."""
        names, self._arguments = ", ".join(self._arguments), []  # the message is shown once
        if self._step > newest:
            raise UsageError(
                f"last_ckpt_info is from step {self._step}, but the run in the workdir is at step {newest}.\n"
                "  Give another workdir to continue from the given arrays, or leave out "
                f"{names} to continue the run in the workdir."
            )
        return f"! not used: {names}. The workdir's run is continued after step {newest}" if names else None

    def _new_state(self, tx: Tx, seed: int, layout: Layout) -> TrainState:
        if self._values is None:
            return init_state(self.init, tx, seed, layout)
        state = state_from(self._values, tx, seed, layout)
        state = dataclasses.replace(state, step=copy_to(np.int32(self._step), state.step.sharding))
        return state if self._opt_state is None else self._with_opt_state(state)

    def _with_opt_state(self, state: TrainState) -> TrainState:
        changes = tree.differences(self._opt_state, state.opt_state)
        if changes:
            raise UsageError(
                f"opt_state does not belong to this optimizer with these parameters: {changes}.\n"
                "  Leave it out to start with a new optimizer state."
            )
        leaves = tree.named_leaves(self._opt_state)
        opt_state = tree.map_named(lambda name, x: copy_to(leaves[name], x.sharding), state.opt_state)
        return dataclasses.replace(state, opt_state=opt_state)


def check_step(loss: Any, train_step: Any, microbatches: int) -> None:
    """Check the arguments that define an update."""
    if loss is None and train_step is None:
        raise UsageError("Trainer has no loss and no train_step: give one of them.")
    if microbatches < 1:
        raise UsageError(f"microbatches={microbatches}: it must be at least 1.")
    if train_step is not None and microbatches > 1:
        raise UsageError(
            f"microbatches={microbatches}: a train_step gets whole batches. Leave out microbatches."
        )


def check_schedule(lr_schedule: Any, microbatches: int, target: TrainState) -> None:
    """Check that a schedule from the deployer was made for the trainer's number of microbatches."""
    if not isinstance(lr_schedule, LrSchedule) or has_multi_steps(target.opt_state):
        return  # with `optax.MultiSteps` one step of the schedule is several steps of the trainer
    if lr_schedule.microbatches != microbatches:
        raise UsageError(
            f"lr_schedule was made for microbatches={lr_schedule.microbatches}, but the trainer has "
            f"microbatches={microbatches}: the schedule would end too early or too late.\n"
            f"  Call get_lr_schedule_fn with microbatches={microbatches}."
        )


def check_same(target: TrainState, state: TrainState) -> None:
    """Check that a state has the structure, shapes, dtypes and shardings of `target`."""
    if isinstance(count := getattr(state, "step", None), jax.Array) and count.is_deleted():
        raise UsageError(
            "the arrays of this state are deleted: `fit` donated them when it trained further.\n"
            "  Copy a state before `fit` to use it again: saved = jax.tree.map(jnp.copy, trainer.state)."
        )
    changes = tree.differences(target, state)
    if changes:
        raise UsageError(f"the state does not fit this trainer: {changes}.")
    structs = tree.named_leaves(target)
    for name, x in tree.named_leaves(state).items():
        if getattr(x, "sharding", None) != structs[name].sharding:
            raise UsageError(
                f"{name} of the state has another sharding than in this trainer.\n  Copy the state first: "
                "`mw.parallel.copy_to(state, trainer.layout.shardings(state))`."
            )


def lost() -> MeshwrightError:
    """Return the error for a state whose arrays no longer exist."""
    return MeshwrightError(
        "the state of training is lost: a step failed after its arrays had been donated to it.\n"
        "  With Deployer(workdir=...) `fit` continues from the newest checkpoint. Without it make a new "
        "Trainer."
    )


def _initial_values(model: Functional | None, params: PyTree, model_state: PyTree) -> Variables | None:
    """Return the values that exist already: the given ones, or those of a module; None if there are none."""
    if params is not None:
        return Variables(as_arrays(params), as_arrays(model_state, "model_state"))
    if model is None or not model.has_values:
        return None
    variables = model.init(key_of(0))
    return variables if isinstance(variables, Variables) else Variables(variables, None)


def _zeros(variables: Variables | None) -> Init:
    """Return a function that makes zeros with the shapes and dtypes of `variables`."""
    structs = tree.abstract(variables)

    def zeros_of(x: jax.ShapeDtypeStruct) -> jax.Array:
        # typed keys have an extended dtype
        dtype: Any = jax.dtypes.canonicalize_dtype(x.dtype, allow_extended_dtype=True)
        return jnp.zeros(x.shape, dtype)

    def init(key: jax.Array) -> Variables:
        return jax.tree.map(zeros_of, structs)

    return init


def _check(
    model: Functional | None,
    params: PyTree,
    model_state: PyTree,
    opt_state: optax.OptState | None,
    last_ckpt_info: Mapping[str, Any] | None,
) -> None:
    if params is None and model is None:
        raise UsageError("Trainer has no parameters to train: give it a model, params or both.")
    others = {"model_state": model_state, "opt_state": opt_state, "last_ckpt_info": last_ckpt_info}
    if params is None and (names := [name for name, value in others.items() if value is not None]):
        raise UsageError(f"{' and '.join(names)} is given without params: give params, too.")
    if params is not None and model is not None and model.stateful != (model_state is not None):
        has, give = ("a", "give model_state, too") if model.stateful else ("no", "leave out model_state")
        raise UsageError(f"the model has {has} state besides its parameters: {give}.")
