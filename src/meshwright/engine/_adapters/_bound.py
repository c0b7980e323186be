"""A model that holds its parameters, as users' functions call it: `model(x)`, `model.encode(x)`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from meshwright.engine._adapters._functional import Functional
from meshwright.engine._adapters._library import PyTree, reach
from meshwright.errors import UsageError

BATCH_AXIS = "batch"
"""The axis name over which a model of one example is mapped; give it to `eqx.nn.BatchNorm`."""

_MAPPED = (
    "This model takes one example, and model(…) maps it over the first dimension of its arguments. So give "
    "it a whole batch: model(batch['x']), not jax.vmap(model)(batch['x']). If a positional argument is the "
    "same for all examples, let the loss name params, and map the module: net = mw.functional(Net); "
    "jax.vmap(net.bind(params), in_axes=(None, 0))(times, batch['x'])."
)


class Part:
    """A method or a submodule of a bound model, called in the same way as the model."""

    def __init__(self, whole: "Bound", path: str):
        self._whole, self._path = whole, path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output for these arguments. Each call draws other random numbers."""
        return self._whole._call(args, {**kwargs, "method": kwargs.get("method", self._path)})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._whole._part(f"{self._path}.{name}" if self._path else name)

    def __getitem__(self, key: int | str) -> Any:
        return self._whole._part(f"{self._path}.{key}" if self._path else str(key))


class Bound(Part):
    """A model that holds its parameters, which a user's function calls as `model(batch)`.

    Methods and submodules are called in the same way: `model.encode(batch)`, `model.layers[0](batch)`. A
    model for single examples, as in Equinox, is mapped over the first dimension of the positional arguments,
    and each example draws its own random numbers. Keyword arguments are not mapped.

    Use it only while a step is traced. If the model has a state, each call updates `model_state`.

    Example:
      >>> model = mw.functional((lambda key: {"w": jnp.ones(3)}, lambda params, x: x * params["w"]))
      >>> bound = mw.engine._internal.Bound(model, {"w": jnp.ones(3)}, None, key=None, train=False)
      >>> bound(jnp.zeros((2, 3))).shape
      (2, 3)
    """

    def __init__(
        self, model: Functional, params: PyTree, model_state: PyTree, key: jax.Array | None, train: bool
    ):
        super().__init__(self, "")
        self._model, self._params, self._key, self._train = model, params, key, train
        self._num_calls = 0
        self.model_state = model_state

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        key = None if self._key is None else jax.random.fold_in(self._key, self._num_calls)
        self._num_calls += 1

        def apply(key: jax.Array | None, *args: Any) -> tuple[Any, PyTree]:
            options: dict[str, Any] = {"key": key, "train": self._train, **kwargs}
            if self.model_state is None:
                return self._model.apply(self._params, *args, **options), None
            return self._model.apply(self._params, *args, model_state=self.model_state, **options)

        out, self.model_state = (_over_examples(apply) if self._model.per_example else apply)(key, *args)
        return out

    def _part(self, path: str) -> Any:
        model = self._model.bind(self._params, model_state=self.model_state, key=self._key, train=self._train)
        attribute = reach(model[0] if isinstance(model, tuple) else model, path)
        return Part(self, path) if _is_called(attribute) else attribute


def _is_called(x: Any) -> bool:
    """Return whether `x` is a function or a module, or holds some, and not an array or a variable."""
    if isinstance(x, Mapping):
        return any(_is_called(item) for item in x.values())
    if isinstance(x, Sequence) and not isinstance(x, str):
        return any(_is_called(item) for item in x)
    return callable(x) and not hasattr(x, "dtype")


def _over_examples(apply: Callable[..., tuple[Any, PyTree]]) -> Callable[..., tuple[Any, PyTree]]:
    """Return `apply(key, *args) -> (out, state)` for a batch, given that for one example."""

    def call(key: jax.Array | None, *args: Any) -> tuple[Any, PyTree]:
        shapes = [jax.numpy.shape(x) for x in jax.tree.leaves(args)]
        if not shapes or () in shapes:
            arguments = f"arguments of the shapes {shapes}" if shapes else "no positional argument"
            raise UsageError(f"the model was called with {arguments}, which have no examples.\n  {_MAPPED}")
        keys = None if key is None else jax.random.split(key, shapes[0][0])
        try:
            return jax.vmap(apply, out_axes=(0, None), axis_name=BATCH_AXIS)(keys, *args)
        except Exception as error:
            error.add_note(f"{_MAPPED} Here its arguments have the shapes {shapes}.")
            raise

    return call
