"""The arrays that training starts from: those given, or the model's own."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from meshwright import tree
from meshwright.adapters import Functional
from meshwright.deployer import LrSchedule
from meshwright.errors import MeshwrightError, UsageError
from meshwright.sharding import Layout, as_arrays, copy_to
from meshwright.train import (
    Init,
    TrainState,
    Tx,
    Variables,
    has_multi_steps,
    init_state,
    key_of,
    state_from,
)
from meshwright.trainer._epochs import start_of
from meshwright.tree import PyTree


class Start:
    """The first state, and before there is one, its outline.

    Raises:
      UsageError: the arguments do not say what to start from, or contradict each other.
    """

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
        """The position in the data to start from, if that is not the beginning."""
        self._given = _given(model, params, model_state)
        self._opt_state, self._is_used = opt_state, False
        beside = {"model_state": model_state, "opt_state": opt_state, "last_ckpt_info": last_ckpt_info}
        self._arguments = [name for name, x in {"params": params, **beside}.items() if x is not None]
        self.init: Init = _like(self._given) if model is None or self._given is not None else model.init
        """Makes arrays of the right shapes and dtypes, and if none were given the right values."""
        self.has_state = model.stateful if model else model_state is not None

    def outline(self) -> Variables:
        """Return parameters and model state as structs."""
        made = jax.eval_shape(self.init, key_of(0))
        return made if isinstance(made, Variables) else Variables(made, None)

    def state(self, tx: Tx, seed: int, layout: Layout) -> TrainState:
        """Return the first state, on the mesh. What was given is copied and let go of, so it is made once.

        Raises:
          UsageError: the optimizer's state that was given is of another optimizer or other parameters.
          MeshwrightError: it was made before.
        """
        if self._is_used:
            raise lost()
        state = self._made(tx, seed, layout)
        self._given, self._opt_state, self._is_used = None, None, True
        return state

    def give_way(self, newest: int) -> str | None:
        """Return what is told where the workdir's run is continued after `newest`, and nothing given is used.

        Raises:
          UsageError: What was given is of a later step.
        """
        names, self._arguments = ", ".join(self._arguments), []  # told once
        if self._step > newest:
            raise UsageError(
                f"last_ckpt_info is of step {self._step}, and the workdir's run, which would be continued, "
                f"is at step {newest}.\n  Give another workdir, to go on from what is given; or leave out "
                f"{names}, to continue that run."
            )
        return f"! not used: {names}. The workdir's run is continued after step {newest}" if names else None

    def _made(self, tx: Tx, seed: int, layout: Layout) -> TrainState:
        if self._given is None:
            return init_state(self.init, tx, seed, layout)
        state = state_from(self._given, tx, seed, layout)
        state = dataclasses.replace(state, step=copy_to(np.int32(self._step), state.step.sharding))
        return state if self._opt_state is None else self._with_opt_state(state)

    def _with_opt_state(self, state: TrainState) -> TrainState:
        changes = tree.differences(self._opt_state, state.opt_state)
        if changes:
            raise UsageError(f"opt_state is not that of this optimizer for these parameters: {changes}.")
        given = tree.named_leaves(self._opt_state)
        opt_state = tree.map_named(lambda name, x: copy_to(given[name], x.sharding), state.opt_state)
        return dataclasses.replace(state, opt_state=opt_state)


def check_step(loss: Any, train_step: Any, microbatches: int) -> None:
    """Raise a `UsageError` if these do not make an update."""
    if loss is None and train_step is None:
        raise UsageError("there is nothing to train by: give Trainer a loss, or a train_step.")
    if microbatches < 1 or (train_step is not None and microbatches > 1):
        raise UsageError(
            f"microbatches={microbatches}: it must be at least 1, and with a "
            "train_step, which is given whole batches, be left out."
        )


def check_schedule(lr_schedule: Any, microbatches: int, target: TrainState) -> None:
    """Raise a `UsageError` if a schedule of the deployer's counts other steps than the trainer makes."""
    if not isinstance(lr_schedule, LrSchedule) or has_multi_steps(target.opt_state):
        return  # of `optax.MultiSteps`, several of the trainer's steps are one of the schedule's
    counted = lr_schedule.microbatches
    if counted != microbatches:
        raise UsageError(
            f"lr_schedule counts steps of {counted} micro-batches, and the trainer makes them of "
            f"microbatches={microbatches}: it would end too early or too late.\n  Give "
            f"get_lr_schedule_fn microbatches={microbatches}, too."
        )


def check_same(target: TrainState, state: TrainState) -> None:
    """Raise a `UsageError` if a state has other arrays than `target`, in other places, or none any more."""
    if isinstance(count := getattr(state, "step", None), jax.Array) and count.is_deleted():
        raise UsageError(
            "the arrays of this state are gone: `fit` took them when it trained further.\n  Copy a state "
            "before, if you want to come back to it: saved = jax.tree.map(jnp.copy, trainer.state)."
        )
    changes = tree.differences(target, state)
    if changes:
        raise UsageError(f"the state is not that of this trainer: {changes}.")
    wanted, given = tree.named_leaves(target), tree.named_leaves(state)
    for name, x in given.items():
        if getattr(x, "sharding", None) != wanted[name].sharding:
            raise UsageError(
                f"{name} of the state does not lie where this trainer has it.\n  Place it first: "
                "`mw.sharding.copy_to(state, trainer.layout.shardings(state))`."
            )


def lost() -> MeshwrightError:
    """Return the error for a state that is asked for and is no longer there."""
    return MeshwrightError(
        "the state of training is lost: a step failed, and had taken the memory that it was in.\n"
        "  With Deployer(workdir=...) `fit` goes on from the newest checkpoint; else make a new Trainer."
    )


def _given(model: Functional | None, params: PyTree, model_state: PyTree) -> Variables | None:
    """Return the values that there are already: those given, or those of a module that was."""
    if params is not None:
        return Variables(as_arrays(params), as_arrays(model_state, "model_state"))
    if model is None or not model.has_values:
        return None
    made = model.init(key_of(0))
    return made if isinstance(made, Variables) else Variables(made, None)


def _like(variables: Variables | None) -> Init:
    """Return a function that makes zeros of these shapes and dtypes."""
    structs = tree.abstract(variables)

    def one(x: jax.ShapeDtypeStruct) -> jax.Array:
        dtype: Any = jax.dtypes.canonicalize_dtype(x.dtype, allow_extended_dtype=True)  # that of typed keys
        return jnp.zeros(x.shape, dtype)

    def zeros(key: jax.Array) -> Variables:
        return jax.tree.map(one, structs)

    return zeros


def _check(
    model: Functional | None,
    params: PyTree,
    model_state: PyTree,
    opt_state: optax.OptState | None,
    last_ckpt_info: Mapping[str, Any] | None,
) -> None:
    if params is None and model is None:
        raise UsageError("there are no parameters to train: give Trainer a model, params or both.")
    beside = {"model_state": model_state, "opt_state": opt_state, "last_ckpt_info": last_ckpt_info}
    if params is None and (given := [name for name, value in beside.items() if value is not None]):
        raise UsageError(f"{' and '.join(given)} is to start from beside params: give params, too.")
    if params is not None and model is not None and model.stateful != (model_state is not None):
        has, give = ("a", "give model_state, too") if model.stateful else ("no", "leave out model_state")
        raise UsageError(f"the model has {has} state besides its parameters: {give}.")
