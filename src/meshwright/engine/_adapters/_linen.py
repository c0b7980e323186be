"""Flax Linen models: modules hold no arrays; these lie in collections, one of which is `params`."""

import contextlib
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from flax import linen
from flax.core import unfreeze
from flax.traverse_util import flatten_dict, unflatten_dict

from meshwright.base._internal import tree
from meshwright.engine._adapters._library import (
    Axes,
    PyTree,
    abstract,
    accepted,
    arrays,
    call,
    in_evaluation,
    mode_and_key,
    of_dimensions,
    ordered_leaves,
    reach,
)
from meshwright.errors import UsageError
from meshwright.training._internal import Variables

_NO_MESH = jax.sharding.AbstractMesh((), ())


class Linen:
    """A Linen module as functions. All collections but `params` are merged into one tree, the state."""

    per_example = False

    def __init__(self, module: linen.Module, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self._module, self._evaluated = module, in_evaluation(module)
        self.has_dropout = False
        self._examples = args, _checked(module, args, kwargs)
        self.axes, variables = abstract(self._take_apart)
        leaves = list(_state_leaves(variables))
        self._collection_of = {path: collection for collection, path, _ in leaves}
        _check_paths([path for _, path, _ in leaves])
        first = _variables(variables)
        self._param_names, self._state_names = map(tree.leaf_names, (first.params, first.model_state))
        self.stateful = bool(leaves)

    def init(self, key: jax.Array) -> Variables:
        """Return the arrays that the module initialises."""
        return _variables(self._take_apart(key)[1])

    def bind(self, params: PyTree, model_state: PyTree, key: jax.Array | None, train: bool) -> linen.Module:
        """Return a bound module; in training its state is mutable."""
        ordered_leaves(params, self._param_names, "params")
        ordered_leaves(model_state, self._state_names, "model_state")
        state = self._collections(model_state)
        # Random streams of any other name fall back to "params".
        rngs = {} if key is None else dict(zip(("params", "dropout"), jax.random.split(key), strict=True))
        mutable = list(state) if train else False
        module = self._module if train else self._evaluated
        return module.bind({"params": params, **state}, rngs=rngs, mutable=mutable)

    def call(
        self,
        model: linen.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        path: str,
    ) -> tuple[Any, PyTree]:
        """Return the output and the new state, which the call wrote into the module's collections."""
        with contextlib.nullcontext() if options["train"] else linen.intercept_methods(_refuse_dropout):
            if kwargs.keys() & {"mutable", "variables"}:
                return self._with_collections(model, args, options, path, **kwargs), {}
            out = call(reach(model, path), args, kwargs, options)
        moved = {path: leaf for _, path, leaf in _state_leaves(model.variables)}
        return out, unflatten_dict({path: moved[path] for path in self._collection_of})

    def _with_collections(
        self,
        model: linen.Module,
        args: Sequence[Any],
        options: Mapping[str, Any],
        path: str,
        *,
        variables: Mapping[str, Any] = {},
        mutable: str | Sequence[str] = (),
        **kwargs: Any,
    ) -> Any:
        """Return the output with `variables` added to the collections, and the `mutable` ones, if any."""
        names = [mutable] if isinstance(mutable, str) else list(mutable)
        rngs: Any = model.scope.rngs if model.scope else {}
        bound = model.unbind()[0].bind({**model.variables, **variables}, rngs=rngs, mutable=names)
        out = call(reach(bound, path), args, kwargs, options)
        return (out, {name: bound.variables.get(name, {}) for name in names}) if names else out

    def _collections(self, model_state: PyTree) -> dict[str, Any]:
        collections: dict[str, Any] = {name: {} for name in self._collection_of.values()}
        for path, leaf in flatten_dict(model_state).items():
            collections[self._collection_of[path]][path] = leaf
        return {name: unflatten_dict(leaves) for name, leaves in collections.items()}

    def _take_apart(self, key: jax.Array) -> tuple[dict[str, Axes], dict[str, Any]]:
        """Return the axis names of each parameter, and all collections, unboxed."""
        args, kwargs = arrays(self._examples)
        # Under a mesh, boxes constrain arrays by the names of their axes, which the mesh may not have.
        with jax.sharding.use_abstract_mesh(_NO_MESH), linen.intercept_methods(self._note):
            boxed = unfreeze(self._module.init(key, *args, **kwargs))
            return _axes(boxed.get("params", {})), linen.unbox(boxed)

    def _note(self, called: Any, args: Any, kwargs: Any, context: Any) -> Any:
        """Call a method of a submodule as Linen would, and note whether it is a dropout layer."""
        self.has_dropout |= isinstance(context.module, linen.Dropout) and context.module.rate > 0
        return called(*args, **kwargs)


def _refuse_dropout(called: Any, args: Any, kwargs: Any, context: Any) -> Any:
    """Call a method of a submodule as Linen would, unless it is a dropout layer that draws in evaluation.

    A layer that is made in a `@compact` method is not among the fields that `in_evaluation` sets.
    """
    layer = context.module
    if isinstance(layer, linen.Dropout) and context.method_name == "__call__" and layer.rate > 0:
        wishes = (layer.deterministic, kwargs.get("deterministic"), *args[1:2])
        if False in wishes and True not in wishes:
            name = "/".join(layer.path) or "the dropout layer"
            raise UsageError(
                f"{name} drops in evaluation, too: where it is made or called, it gets deterministic=False.\n"
                "  Give the model's method an argument `train`, and the layer deterministic=not train.\n"
                "  For draws in evaluation, call the model with train=True."
            )
    return called(*args, **kwargs)


def _variables(collections: Mapping[str, Any]) -> Variables:
    state = {path: leaf for _, path, leaf in _state_leaves(collections)}
    return Variables(collections.get("params", {}), unflatten_dict(state))


def _state_leaves(collections: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Yield the collection, path and value of each array outside `params`."""
    for name, collection in collections.items():
        if name != "params":
            leaves = flatten_dict(collection).items()
            yield from ((name, path, leaf) for path, leaf in leaves if jax.tree.leaves(leaf))


def _axes(boxed: PyTree) -> dict[str, Axes]:
    def is_box(x: Any) -> bool:
        return isinstance(x, linen.Partitioned)

    specs = jax.tree.map(lambda x: x.get_partition_spec() if is_box(x) else None, boxed, is_leaf=is_box)
    return of_dimensions(tree.named_leaves(specs), tree.named_leaves(linen.unbox(boxed)))


def _check_paths(paths: Sequence[tuple[str, ...]]) -> None:
    twice = ["/".join(path) for path, times in Counter(paths).items() if times > 1]
    if twice:
        raise UsageError(
            f"two collections of this model have a variable of the same name: {', '.join(twice)}.\n"
            "  All collections but `params` become one tree, the model's state: rename one of the variables."
        )


def _checked(module: linen.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return `kwargs` with the mode and the key added as far as `module` takes them."""
    try:
        whole = {**accepted(module, mode_and_key(train=False, key=None), len(args)), **kwargs}
        inspect.signature(module).bind(*args, **whole)
    except TypeError as error:
        raise UsageError(
            f"{type(module).__name__} cannot be initialised with the example inputs given: {error}.\n"
            "  Give example inputs, as in a call: functional(model, inputs); jax.ShapeDtypeStructs will do."
        ) from None
    return whole
