"""Adapters from users' functions, which name the arguments they want, to the functions that packages call."""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from meshwright.base._internal import PyTree, by_name, declares
from meshwright.engine._adapters._bound import Bound
from meshwright.engine._adapters._functional import Functional
from meshwright.training._internal import step_key


def loss_of(
    loss: Callable[..., Any], model: Functional | None, *, train: bool, has_state: bool
) -> Callable[..., Any]:
    """Return a user's loss as `mw.training.Loss` or, for a model with a state, `mw.training.StatefulLoss`."""
    trained = ("params",) if model is None else ("model", "params")
    available = (*trained, "batch", "key", "train", "step", *(("model_state",) if has_state else ()))
    called, declares_state = (
        by_name(loss, available, "loss", ("batch", trained)),
        declares(loss, "model_state"),
    )

    def call(
        params: PyTree, batch: PyTree, key: jax.Array, model_state: PyTree = None, *, step: Any = None
    ) -> Any:
        bound = Bound(model, params, model_state, key, train) if model else None
        own = {"params": params, "model": bound, "model_state": model_state}
        returned = called(**own, batch=_own(batch), key=key, train=train, step=step)
        if model_state is None or declares_state:
            return returned
        value, metrics = returned if isinstance(returned, tuple) else (returned, {})
        return value, metrics, bound.model_state if bound else model_state

    return call


def prediction_of(predict: Callable[..., Any], model: Functional | None) -> Callable[..., PyTree]:
    """Return a user's prediction as a function `(params, model_state, batch, key) -> predictions`."""
    available = (*(("model",) if model else ()), "params", "batch", "key", "model_state")
    called = by_name(predict, available, "prediction", ("batch",))

    def call(params: PyTree, model_state: PyTree, batch: PyTree, key: jax.Array) -> PyTree:
        bound = Bound(model, params, model_state, key, False) if model else None
        return called(params=params, model=bound, batch=_own(batch), key=key, model_state=model_state)

    return call


def _own(batch: PyTree) -> PyTree:
    """Return a copy of the batch's containers, so that a user's function may change them."""
    return jax.tree.map(lambda x: x, batch)


def step_of(train_step: Callable[..., Any]) -> Callable[[Any, PyTree], tuple[Any, Mapping[str, Any]]]:
    """Return a user's train step as a function `(state, batch) -> (state, metrics)`."""
    called = by_name(train_step, ("state", "batch", "key"), "train step", ("state", "batch"))

    def step(state: Any, batch: PyTree) -> tuple[Any, Mapping[str, Any]]:
        return called(state=state, batch=_own(batch), key=step_key(state))

    return step
