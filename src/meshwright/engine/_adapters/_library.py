"""The interface that the adapter of each library implements, and the functions that adapters share."""

import copy
import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from meshwright.base._internal import PyTree, tree
from meshwright.errors import UsageError
from meshwright.training._internal import Variables, key_of

Axes = tuple[str | None, ...]


class Library(Protocol):
    """An adapter: one library's model as functions on plain trees. A model without state has the state {}."""

    axes: Mapping[str, Axes]
    stateful: bool
    per_example: bool
    has_dropout: bool

    def init(self, key: jax.Array) -> Variables:
        """Return the model's initial arrays. Can be traced."""
        ...

    def bind(self, params: PyTree, model_state: PyTree, key: jax.Array | None, train: bool) -> Any:
        """Return the library's own object, holding these arrays."""
        ...

    def call(
        self,
        model: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        path: str,
    ) -> tuple[Any, PyTree]:
        """Call the bound `model`, or its attribute at `path`; return the output and the new state."""
        ...


def mode_and_key(train: bool, key: jax.Array | None) -> dict[str, Any]:
    """Return the mode and the key under all the argument names that models usually have for them."""
    mode = {"train": train, "training": train, "is_training": train}
    mode |= {"deterministic": not train, "inference": not train}
    return mode if key is None else mode | {"key": key, "rng": key}


def in_evaluation(model: Any) -> Any:
    """Return a dataclass `model` with the fields that say the mode set for evaluation.

    Also those of its modules and configs. A field is set if it is true or false; if it is None, a call says.
    """
    mode = mode_and_key(train=False, key=None)
    parts: dict[int, tuple[Any, Any]] = {}  # a module that is in two fields stays one

    def copied(part: Any) -> Any:
        if isinstance(part, Mapping | list | tuple):
            return every(part)
        if not dataclasses.is_dataclass(part) or isinstance(part, type):
            return part
        if id(part) not in parts:
            new = copy.copy(part)  # by its class it may have more to do, or be frozen
            parts[id(part)] = part, new
            is_same = True
            for name in {field.name for field in dataclasses.fields(part)} - {"parent"}:
                old = getattr(part, name, None)
                value = mode[name] if name in mode and isinstance(old, bool) else copied(old)
                is_same &= value is old
                object.__setattr__(new, name, value)
            parts[id(part)] = part, part if is_same else new
        return parts[id(part)][1]

    def every(values: Any) -> Any:  # not by `jax.tree.map`, which sorts the keys of a dict
        old = list(values.values() if isinstance(values, Mapping) else values)
        new = [copied(value) for value in old]
        if all(map(operator.is_, old, new)):
            return values
        make: Callable[[Any], Any] = getattr(values, "_make", type(values))
        if isinstance(values, Mapping):
            named = dict(zip(values, new, strict=True))
            return values | named if isinstance(values, dict) else make(named)
        return make(new)

    return copied(model)


def reach(model: Any, path: str) -> Any:
    """Return the attribute of `model` at `path`: names and keys joined by dots; "" is the model itself."""
    if path and isinstance(model, functools.partial):
        raise UsageError(
            f"there is no method {path!r}: this model is a pair of functions, (init, apply).\n"
            "  Let your function have an argument `params`, and call your own functions with it."
        )
    for key in path.split(".") if path else ():
        if isinstance(model, Mapping):
            model = model[key]
        else:
            model = model[int(key)] if key.isdecimal() else getattr(model, key)
    return model


def call(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> Any:
    """Call `model` with `args`, `kwargs`, and those `options` that it has further parameters for."""
    return model(*args, **{**accepted(model, options, len(args)), **kwargs})


def accepted(model: Callable[..., Any], options: Mapping[str, Any], num_given: int = 0) -> dict[str, Any]:
    """Return the `options` that `model` has parameters for, not counting the first `num_given` parameters."""
    parameters = enumerate(inspect.signature(model).parameters.values())
    names = {p.name for i, p in parameters if i >= num_given or p.kind is inspect.Parameter.KEYWORD_ONLY}
    return {name: value for name, value in options.items() if name in names}


def abstract(take_apart: Callable[[jax.Array], tuple[Any, PyTree]]) -> tuple[Any, PyTree]:
    """Return `take_apart(key)` with structs for the arrays of its second part. Uses no device."""
    structures = []

    def leaves(seed: jax.Array) -> PyTree:
        structure, tree_of_arrays = take_apart(key_of(seed))
        structures.append(structure)
        return tree_of_arrays

    structs = jax.eval_shape(leaves, jax.ShapeDtypeStruct((), jnp.uint32))
    return structures[0], structs


def of_dimensions(specs: Mapping[str, Axes], named: Mapping[str, Any]) -> dict[str, Axes]:
    """Return the names of dimensions, with None for each further dimension of an array.

    Flax's layers of heads make a kernel of two dimensions, which have the names, and reshape it.
    """
    return {name: (*spec, *[None] * (named[name].ndim - len(spec))) for name, spec in specs.items()}


def arrays(examples: PyTree) -> PyTree:
    """Return `examples` with an array of zeros for each struct."""
    return jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x, examples
    )


def ordered_leaves(values: PyTree, names: Sequence[str], label: str) -> list[Any]:
    """Return the leaves of the plain tree `values` in the order of `names`."""
    named = tree.named_leaves(values)
    missing = [name for name in names if name not in named]
    unknown = sorted(named.keys() - {*names})
    if missing or unknown:
        raise UsageError(
            f"{label} does not fit this model:\n"
            f"  missing: {', '.join(missing) or 'nothing'}\n"
            f"  unknown: {', '.join(unknown) or 'nothing'}\n"
            f"  The model has: {', '.join(names) or 'nothing'}.{_instead(named, names)}"
        )
    return [named[name] for name in names]


def _instead(named: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return advice where `named` holds the model's arrays under longer names; otherwise an empty text."""
    if {f"params/{name}" for name in names} <= named.keys():
        return "\n  Give its entry `params`: trainer.params, variables['params'] or state.params."
    if {f"{name}/value" for name in names} <= named.keys():
        return "\n  From an NNX module give plain arrays: nnx.to_pure_dict(nnx.state(module, nnx.Param))."
    return ""


def checked_module(model: Any, module: type, argument: str) -> Any:
    """Return `model`, the result of a function that takes `argument`, if it is a `module`."""
    if not isinstance(model, module):
        library = module.__module__.partition(".")[0]
        raise UsageError(
            f"a function with a parameter `{argument}` must return a module of {library}, but it returned a "
            f"value of type {type(model).__name__}.\n"
            "  If it returns parameters, give a pair of functions: (init, apply)."
        )
    return model
