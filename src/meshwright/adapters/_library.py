"""What the adapter of each library provides, and the steps that they share."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from meshwright import tree
from meshwright.errors import UsageError
from meshwright.train import Variables, key_of
from meshwright.tree import PyTree

Axes = tuple[str | None, ...]


class Library(Protocol):
    """How one library does it. Trees of parameters and state are plain; a model without state has {}."""

    axes: Mapping[str, Axes]
    stateful: bool
    per_example: bool

    def init(self, key: jax.Array) -> Variables:
        """Return a model's arrays. Traceable."""
        ...

    def bind(self, params: PyTree, model_state: PyTree, key: jax.Array | None, train: bool) -> Any:
        """Return the model with these arrays in it."""
        ...

    def call(
        self, model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], told: Mapping[str, Any], path: str
    ) -> tuple[Any, PyTree]:
        """Return what the bound `model`, or what it has at `path`, returns, and its state after that."""
        ...


def mode_and_key(train: bool, key: jax.Array | None) -> dict[str, Any]:
    """Return what a model may want to be told, by the usual names of the arguments."""
    mode = {"train": train, "training": train, "is_training": train}
    mode |= {"deterministic": not train, "inference": not train}
    return mode if key is None else mode | {"key": key, "rng": key}


def reach(model: Any, path: str) -> Any:
    """Return what `model` has at `path`, attributes and keys with dots between them; "" is the model.

    Raises:
      AttributeError: The model has no such attribute.
      UsageError: It is a pair of functions, which has none.
    """
    if path and isinstance(model, functools.partial):
        raise UsageError(
            f"there is no method {path!r}: this model is a pair of functions, (init, apply).\n"
            "  Name `params` among the arguments of your function, and call what you want with them."
        )
    for key in path.split(".") if path else ():
        if isinstance(model, Mapping):
            model = model[key]
        else:
            model = model[int(key)] if key.isdecimal() else getattr(model, key)
    return model


def call(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], told: Mapping[str, Any]
) -> Any:
    """Call `model`, and tell it what it has parameters for that are not given yet."""
    return model(*args, **{**wanted(model, told, len(args)), **kwargs})


def wanted(model: Callable[..., Any], told: Mapping[str, Any], num_given: int = 0) -> dict[str, Any]:
    """Return those of `told` that `model` has parameters for, not counting the first `num_given`."""
    parameters = enumerate(inspect.signature(model).parameters.values())
    names = {p.name for i, p in parameters if i >= num_given or p.kind is inspect.Parameter.KEYWORD_ONLY}
    return {name: value for name, value in told.items() if name in names}


def abstract(take_apart: Callable[[jax.Array], tuple[Any, PyTree]]) -> tuple[Any, PyTree]:
    """Return `take_apart(key)`, its second part as structs. Allocates nothing, and asks for no device."""
    kept = []

    def leaves(seed: jax.Array) -> PyTree:
        structure, tree_of_arrays = take_apart(key_of(seed))
        kept.append(structure)
        return tree_of_arrays

    structs = jax.eval_shape(leaves, jax.ShapeDtypeStruct((), jnp.uint32))
    return kept[0], structs


def arrays(examples: PyTree) -> PyTree:
    """Return `examples` with zeros where there are structs."""
    return jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x, examples
    )


def pick(values: PyTree, names: Sequence[str], what: str) -> list[Any]:
    """Return the leaves of the plain tree `values` in the order of `names`.

    Raises:
      UsageError: it has others than these, or not all.
    """
    named = tree.named_leaves(values)
    missing = [name for name in names if name not in named]
    unknown = sorted(named.keys() - {*names})
    if missing or unknown:
        raise UsageError(
            f"{what} is not this model's:\n"
            f"  missing: {', '.join(missing) or 'nothing'}\n"
            f"  unknown: {', '.join(unknown) or 'nothing'}\n"
            f"  The model has: {', '.join(names) or 'nothing'}.{_instead(named, names)}"
        )
    return [named[name] for name in names]


def _instead(named: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return what to give instead of what holds the model's arrays under other names, if it does."""
    if {f"params/{name}" for name in names} <= named.keys():
        return "\n  Give what is called `params` in it: trainer.params, variables['params'], state.params."
    if {f"{name}/value" for name in names} <= named.keys():
        return "\n  Of a module of NNX give the arrays alone: nnx.to_pure_dict(nnx.state(module, nnx.Param))."
    return ""


def made(model: Any, module: type, argument: str) -> Any:
    """Return `model`, which a function of `argument` made.

    Raises:
      UsageError: it is not a `module`.
    """
    if not isinstance(model, module):
        library = module.__module__.partition(".")[0]
        raise UsageError(
            f"a function with a parameter `{argument}` must make a module of {library}'s; it made a "
            f"{type(model).__name__}.\n  If it makes parameters, give a pair of functions: (init, apply)."
        )
    return model
