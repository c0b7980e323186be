"""`functional`: find the library of a model, and give the model as plain functions, `Functional`."""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from meshwright.base._internal import PyTree, import_extra
from meshwright.engine._adapters._library import Axes, Library, mode_and_key
from meshwright.engine._adapters._pair import Pair
from meshwright.errors import UsageError


@dataclass(frozen=True, eq=False)
class Functional:
    """A model as plain functions on plain trees. `functional` makes it.

    Example:
      >>> init, apply = lambda key, x: {"w": jnp.ones(3)}, lambda params, x: x * params["w"]
      >>> model = mw.functional((init, apply), jnp.ones(3))
      >>> isinstance(model, mw.engine.Functional), model.apply({"w": jnp.ones(3)}, jnp.ones(3)).shape
      (True, (3,))
    """

    axes: Mapping[str, Axes]
    """The names that the model gave to the dimensions of its parameters, by parameter name."""
    stateful: bool
    """True if the model updates arrays of its own, as batch normalisation does."""
    per_example: bool
    """True if `apply` takes one example instead of a batch, as Equinox modules do."""
    has_values: bool
    """True if a module was given: `init` then returns its values, whatever the key."""
    given: Any
    """The object that `functional` was given, for reports."""
    _library: Library = field(repr=False)

    @property
    def has_dropout(self) -> bool:
        """True if the model has a dropout layer of its library with a rate above 0."""
        return self._library.has_dropout

    def init(self, key: jax.Array) -> PyTree:
        """Return the parameters; for a `stateful` model `Variables(params, model_state)`.

        Args:
          key: A typed PRNG key. It is ignored if the model was given with values (`has_values`).
        """
        variables = self._library.init(key)
        return variables if self.stateful else variables.params

    def apply(
        self,
        params: PyTree,
        *args: Any,
        model_state: PyTree = None,
        key: jax.Array | None = None,
        train: bool = False,
        method: str | Callable[..., Any] = "",
        **kwargs: Any,
    ) -> Any:
        """Return the model's output or, if a `model_state` is given, `(output, new_model_state)`.

        For a Linen model, `mutable=["cache"]` also returns these collections, and `variables={"cache": …}`
        supplies collections that are not part of the state; both as in `module.apply`.

        Args:
          params: The parameters, as `init` returns them.
          args: Positional arguments of the model.
          model_state: The state of a `stateful` model, as `init` returns it.
          key: A typed PRNG key for dropout and the like. The model gets it in the way of its library, and as
            `key`, `rng` or `rngs` if it has such an argument.
          train: Training mode if true. The model gets it in the way of its library, and as `train`,
            `training`, `is_training`, `deterministic` or `inference` if it has such an argument. In
            evaluation the new state is the one given.
          method: The name of a method to call instead, `"encode"`, also of a submodule, `"decoder.embed"`.
          kwargs: Keyword arguments of the model.

        Raises:
          UsageError: A tree does not fit the model, the model's state is missing, or training needs a key.
        """
        model = self.bind(params, model_state=model_state, key=key, train=train)
        path = method if isinstance(method, str) else method.__name__
        out, moved = self._library.call(model, args, kwargs, mode_and_key(train, key), path)
        if model_state is None:
            return out
        return out, (moved if train else model_state)

    def bind(
        self,
        params: PyTree,
        *,
        model_state: PyTree = None,
        key: jax.Array | None = None,
        train: bool = False,
    ) -> Any:
        """Return an object of the model's own library that holds these arrays.

        It is an `nnx.Module`; a bound Linen module; an `eqx.Module`, or if it is stateful the pair of it and
        its `eqx.nn.State`. For a pair of functions it is the second one with `params` filled in.

        Args:
          params: The parameters, as `init` returns them.
          model_state: The state of a `stateful` model, as `init` returns it.
          key: A typed PRNG key for dropout and the like.
          train: Training mode if true, evaluation mode otherwise.

        Raises:
          UsageError: As `apply`.
        """
        if self.stateful and model_state is None:
            raise UsageError(
                "this model has a state besides its parameters, but no model_state was given.\n"
                "  `init` returns Variables(params, model_state): pass model_state=variables.model_state."
            )
        return self._library.bind(params, {} if model_state is None else model_state, key, train)


def functional(model: Any, *example_args: Any, **example_kwargs: Any) -> Functional:
    """Return `model` as plain functions on plain trees, with `init`, `apply` and `bind`.

    No arrays are allocated, however large the model is.

    Args:
      model: One of these (a `Functional` is returned as it is):
        - Flax NNX: a module, its class, or a function of `rngs` that makes one;
        - Flax Linen: a module. It is initialised outside any mesh, so the names in its `with_partitioning`
          need not be axes of a mesh;
        - Equinox: a module, its class, or a function of `key` that makes one;
        - a pair of functions `init(key, *example_args) -> params` and `apply(params, *args) -> output`. The
          second may also take `model_state`, `key` and `train`. If `init` returns
          `Variables(params, model_state)`, then `apply` returns `(output, new_model_state)`.
        A given NNX or Equinox module keeps its values: its `init` ignores the key.
      example_args: Example inputs, arrays or `ShapeDtypeStruct`s. Linen modules and pairs are initialised
        with them.
      example_kwargs: The same, by keyword.

    Raises:
      UsageError: `model` is none of these.

    Example:
      >>> def init(key, x):
      ...     return {"w": jnp.zeros((x.shape[-1], 2))}
      >>> def apply(params, x):
      ...     return x @ params["w"]
      >>> model = mw.functional((init, apply), jnp.ones((4, 3)))
      >>> params = model.init(mw.training.key_of(0))
      >>> model.apply(params, jnp.ones((4, 3))).shape
      (4, 2)
    """
    if isinstance(model, Functional):
        return model
    library = _library_of(model, example_args, example_kwargs)
    return Functional(library.axes, library.stateful, library.per_example, _has_values(model), model, library)


_LIBRARIES = ("flax.nnx", "flax.linen", "equinox")


def library_of(model: Any) -> str | None:
    """Return the library that `model`, a module or its class, is of; None if it is anything else."""
    kind = model if isinstance(model, type) else type(model)
    bases = {name: getattr(sys.modules.get(name), "Module", None) for name in _LIBRARIES}
    return next((name for name, base in bases.items() if base and issubclass(kind, base)), None)


def _library_of(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Library:
    first, second = model if isinstance(model, tuple) and len(model) == 2 else (None, None)
    if _is(model, "flax.linen"):
        return _adapter("_linen", "flax").Linen(model, args, kwargs)
    if _is(model, "flax.nnx"):
        return _adapter("_nnx", "flax").Nnx(lambda rngs: model)
    if _is(model, "equinox") or _is(first, "equinox"):
        return _adapter("_equinox", "equinox").Equinox(lambda key: model)
    if callable(first) and callable(second):
        return Pair(first, second, args, kwargs)
    if "rngs" in _parameters(model):
        return _adapter("_nnx", "flax").Nnx(lambda rngs: model(rngs=rngs))
    if "key" in _parameters(model):
        return _adapter("_equinox", "equinox").Equinox(lambda key: model(key=key))
    raise UsageError(
        f"cannot tell what kind of model {_described(model)} is. Expected one of:\n"
        "  Flax NNX: a module, its class, or a function of `rngs` that makes one;\n"
        "  Flax Linen: a module and example inputs, functional(Mlp(), inputs);\n"
        "  Equinox: a module, its class, or a function of `key` that makes one;\n"
        "  plain functions: a pair (init, apply)."
    )


def _has_values(model: Any) -> bool:
    module = model[0] if isinstance(model, tuple) else model
    return _is(module, "flax.nnx") or _is(module, "equinox")


def _is(model: Any, library: str) -> bool:
    """Return whether `model` is a module of `library`, which is imported if there is such a module."""
    return isinstance(model, getattr(sys.modules.get(library), "Module", ()))


def _adapter(file: str, library: str) -> Any:
    subject = "this model, which is no pair (init, apply),"
    return import_extra(f"meshwright.engine._adapters.{file}", extra=library, needed_by=subject)


def _parameters(model: Any) -> tuple[str, ...]:
    """Return the names of the parameters of `model`; () if it has no signature that can be read."""
    while isinstance(model, functools.partial):
        model = model.func
    # NNX's classes do not show their own signature.
    function = inspect.getattr_static(model, "__init__") if isinstance(model, type) else model
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()


def _described(model: Any) -> str:
    if callable(model):
        title = getattr(model, "__qualname__", type(model).__qualname__)
        return f"{title}({', '.join(_parameters(model))})"
    return f"an object of type {type(model).__name__}"
