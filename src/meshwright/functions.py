"""The user's functions, called with the arguments that they name, as the functions that the rooms take."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax

from meshwright.adapters import Functional
from meshwright.arguments import by_name, declares
from meshwright.train import step_key
from meshwright.tree import PyTree

BATCH_AXIS = "batch"
"""What `eqx.nn.BatchNorm` is to call the axis over which models of one example are mapped."""


class Bound:
    """A model with its parameters: what a user's function calls as `model(inputs)`, inputs being a batch.

    A model that is written for one example, as Equinox's are, is mapped over the first dimension of what is
    given by position, each example with randomness of its own; what is given by name is given whole.

    It lives while a step is traced. If it has a state, each call moves it on.
    """

    def __init__(
        self, model: Functional, params: PyTree, model_state: PyTree, key: jax.Array | None, train: bool
    ):
        self._model, self._params, self._key, self._train = model, params, key, train
        self._num_calls = 0
        self.model_state = model_state

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model makes of the arguments; randomness differs from call to call."""
        key = None if self._key is None else jax.random.fold_in(self._key, self._num_calls)
        self._num_calls += 1
        apply = partial(self._apply, kwargs)
        out, self.model_state = (_over_examples(apply) if self._model.per_example else apply)(key, *args)
        return out

    def _apply(self, kwargs: Mapping[str, Any], key: jax.Array | None, *args: Any) -> tuple[Any, PyTree]:
        told: dict[str, Any] = {"key": key, "train": self._train, **kwargs}
        if self.model_state is None:
            return self._model.apply(self._params, *args, **told), None
        return self._model.apply(self._params, *args, model_state=self.model_state, **told)


def _over_examples(apply: Callable[..., tuple[Any, PyTree]]) -> Callable[..., tuple[Any, PyTree]]:
    """Return `apply(key, *args) -> (out, state)` of one example as that of a batch, which has one state."""

    def call(key: jax.Array | None, *args: Any) -> tuple[Any, PyTree]:
        num_examples = jax.tree.leaves(args)[0].shape[0]
        keys = None if key is None else jax.random.split(key, num_examples)
        return jax.vmap(apply, out_axes=(0, None), axis_name=BATCH_AXIS)(keys, *args)

    return call


def loss_of(
    loss: Callable[..., Any], model: Functional | None, *, train: bool, has_state: bool
) -> Callable[..., Any]:
    """Return `loss` as `Loss` or, for a model with a state, `StatefulLoss`; see `mw.train`.

    Raises:
      UsageError: it asks for what there is not, or takes nothing to train.
    """
    trained = ("params",) if model is None else ("model", "params")
    available = (*trained, "batch", "rng", "train", *(("model_state",) if has_state else ()))
    called, declares_state = (
        by_name(loss, available, "loss", ("batch", trained)),
        declares(loss, "model_state"),
    )

    def call(params: PyTree, batch: PyTree, key: jax.Array, model_state: PyTree = None) -> Any:
        bound = Bound(model, params, model_state, key, train) if model else None
        returned = called(
            params=params, model=bound, batch=_own(batch), rng=key, train=train, model_state=model_state
        )
        if model_state is None or declares_state:
            return returned
        value, metrics = returned if isinstance(returned, tuple) else (returned, {})
        return value, metrics, bound.model_state if bound else model_state

    return call


def prediction_of(predict: Callable[..., Any], model: Functional | None) -> Callable[..., PyTree]:
    """Return `predict` as `(params, model_state, batch, key) -> predictions`.

    Raises:
      UsageError: it asks for what there is not.
    """
    available = (*(("model",) if model else ()), "params", "batch", "rng", "model_state")
    called = by_name(predict, available, "prediction", ("batch",))

    def call(params: PyTree, model_state: PyTree, batch: PyTree, key: jax.Array) -> PyTree:
        bound = Bound(model, params, model_state, key, False) if model else None
        return called(params=params, model=bound, batch=_own(batch), rng=key, model_state=model_state)

    return call


def _own(batch: PyTree) -> PyTree:
    """Return `batch` in containers of its own, which a user's function may take things out of."""
    return jax.tree.map(lambda x: x, batch)


def split(returned: Any, has_state: bool) -> tuple[Any, Mapping[str, Any]]:
    """Return the loss and the metrics of what a loss returned."""
    if has_state:
        return returned[0], returned[1]
    return returned if isinstance(returned, tuple) else (returned, {})


def step_of(train_step: Callable[..., Any]) -> Callable[[Any, PyTree], tuple[Any, Mapping[str, Any]]]:
    """Return a whole update of the user's as `(state, batch) -> (state, metrics)`.

    Raises:
      UsageError: it asks for what there is not.
    """
    called = by_name(train_step, ("state", "batch", "rng"), "train step", ("state", "batch"))

    def step(state: Any, batch: PyTree) -> tuple[Any, Mapping[str, Any]]:
        return called(state=state, batch=_own(batch), rng=step_key(state))

    return step
