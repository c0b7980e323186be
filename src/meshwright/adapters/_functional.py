"""`functional`: what kind of model is this, and the one form in which all of them are handed on."""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from meshwright.adapters._library import Axes, Library, mode_and_key
from meshwright.adapters._pair import Pair
from meshwright.errors import UsageError
from meshwright.tree import PyTree


@dataclass(frozen=True, eq=False)
class Functional:
    """A model as plain functions on plain trees. `functional` makes it."""

    axes: Mapping[str, Axes]
    """By the names of the parameters that have them, the names that the model gave to their dimensions."""
    stateful: bool
    """Does the model move arrays of its own, as batch normalisation does?"""
    per_example: bool
    """Is `apply` called with one example, not with a batch? So modules of Equinox are written."""
    has_values: bool
    """Was a module given, whose values `init` returns, whatever the key?"""
    given: Any
    """What `functional` was given, for people to read."""
    _library: Library = field(repr=False)

    def init(self, key: jax.Array) -> PyTree:
        """Return the parameters; those of a `stateful` model as `Variables(params, model_state)`."""
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
        """Return what the model makes of `args` and `kwargs`; if given a `model_state`, also the new one.

        With `method="encode"` that method is called instead, or a module inside, `method="decoder.embed"`. Of
        Linen, `mutable=["cache"]` returns these collections beside the result, and `variables={"cache": …}`
        gives some that are no part of the model's state, as `module.apply` does both.

        The model hears of `train` and `key` as its library does it, and by the arguments with which
        models usually ask: `train`, `training`, `is_training`, `deterministic`, `inference`, and `key`,
        `rng`, `rngs`. In evaluation the new state is the one given.

        Raises:
          UsageError: a tree is not the model's, or it needs a state, or a key to train.
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
        """Return the user's own object with these arrays in it.

        That is an `nnx.Module`; a bound Linen module; an `eqx.Module`, or if it is stateful the pair
        of it and its `eqx.nn.State`; of a pair of functions, the second with `params` filled in.

        Raises: as `apply`.
        """
        if self.stateful and model_state is None:
            raise UsageError(
                "this model has a state besides its parameters, and none was given.\n"
                "  `init` returns Variables(params, model_state): pass on model_state=variables.model_state."
            )
        return self._library.bind(params, {} if model_state is None else model_state, key, train)


def functional(model: Any, *example_args: Any, **example_kwargs: Any) -> Functional:
    """Return `model` as plain functions on plain trees. Nothing is allocated, whatever its size.

    Args:
      model: one of these, or a `Functional`, which is returned as it is:
        - Flax NNX: a class of modules, any function of `rngs` that makes one, or a module;
        - Flax Linen: a module. It is initialised outside any mesh, so that the names in its
          `with_partitioning` need not be axes of one;
        - Equinox: a class of modules, any function of `key` that makes one, or a module;
        - a pair of functions `init(key, *example_args)` and `apply(params, *args)`. The second may
          have parameters `model_state`, `key` and `train`, too; if the first returns
          `Variables(params, model_state)`, then the second returns the new state beside its result.
        A module of NNX or Equinox keeps its values: its `init` does not depend on the key.
      example_args: what a Linen module is initialised with, arrays or `ShapeDtypeStruct`s.

    Raises:
      UsageError: it is none of these.
    """
    if isinstance(model, Functional):
        return model
    library = _library_of(model, example_args, example_kwargs)
    return Functional(library.axes, library.stateful, library.per_example, _has_values(model), model, library)


def _library_of(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Library:
    first, second = model if isinstance(model, tuple) and len(model) == 2 else (None, None)
    if _is(model, "flax.linen"):
        return _library("_linen").Linen(model, args, kwargs)
    if _is(model, "flax.nnx"):
        return _library("_nnx").Nnx(lambda rngs: model)
    if _is(model, "equinox") or _is(first, "equinox"):
        return _library("_equinox").Equinox(lambda key: model)
    if callable(first) and callable(second):
        return Pair(first, second, args, kwargs)
    if "rngs" in _parameters(model):
        return _library("_nnx").Nnx(lambda rngs: model(rngs=rngs))
    if "key" in _parameters(model):
        return _library("_equinox").Equinox(lambda key: model(key=key))
    raise UsageError(
        f"cannot tell what kind of model {_described(model)} is. These are models:\n"
        "  Flax NNX: a module, its class, or a function of `rngs` that makes one;\n"
        "  Flax Linen: a module and example inputs, functional(Mlp(), inputs);\n"
        "  Equinox: a module, its class, or a function of `key` that makes one;\n"
        "  plain functions: a pair (init, apply)."
    )


def _has_values(model: Any) -> bool:
    module = model[0] if isinstance(model, tuple) else model
    return _is(module, "flax.nnx") or _is(module, "equinox")


def _is(model: Any, library: str) -> bool:
    """Is it a module of `library`? If that was never imported, it is not."""
    return isinstance(model, getattr(sys.modules.get(library), "Module", ()))


def _library(file: str) -> Any:
    try:
        return importlib.import_module(f"meshwright.adapters.{file}")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"this model takes the arguments of one of {error.name}'s, which is not installed.\n"
            f"  Install it: pip install 'meshwright[{error.name}]'; or give a pair (init, apply)."
        ) from None


def _parameters(model: Any) -> tuple[str, ...]:
    """Return the names of what `model` is called with; none if that cannot be known."""
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
