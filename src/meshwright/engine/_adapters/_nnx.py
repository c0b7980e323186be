"""Flax NNX models: modules are graphs of variables, some of which are the state of random streams."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from meshwright.base._internal import tree
from meshwright.engine._adapters._library import (
    Axes,
    PyTree,
    abstract,
    call,
    checked_module,
    mode_and_key,
    of_dimensions,
    ordered_leaves,
    reach,
)
from meshwright.errors import UsageError
from meshwright.training._internal import Variables, key_of


class Nnx:
    """An NNX module as functions.

    `nnx.Param`s are the parameters. Random streams start anew at each call, from the key. All other variables
    are the state.
    """

    per_example = False

    def __init__(self, make: Callable[[nnx.Rngs], Any]):
        self._make = make
        self.has_dropout = False
        self._graphs, self._structs = abstract(self._take_apart)
        self._names = [tree.leaf_names(nnx.to_pure_dict(structs)) for structs in self._structs]
        self.stateful = bool(self._names[2])
        specs = tree.named_leaves(nnx.to_pure_dict(nnx.get_partition_spec(self._structs[0])))
        arrays = tree.named_leaves(nnx.to_pure_dict(self._structs[0]))
        self.axes: Mapping[str, Axes] = of_dimensions({n: spec for n, spec in specs.items() if spec}, arrays)

    def init(self, key: jax.Array) -> Variables:
        """Return the arrays of a new module or, if a module was given, those of that module."""
        params, _, state = self._take_apart(key)[1]
        return Variables(_plain(params), _plain(state))

    def bind(self, params: PyTree, model_state: PyTree, key: jax.Array | None, train: bool) -> nnx.Module:
        """Return a module in training or evaluation mode. Without a key, its streams start from key 0."""
        param_names, stream_names, state_names = self._names
        if train and stream_names and key is None:
            raise UsageError(f"in training this model draws random numbers ({stream_names[0]}): give a key.")
        values = (
            ordered_leaves(params, param_names, "params"),
            _fresh(self._structs[1], key_of(0) if key is None else key),
            ordered_leaves(model_state, state_names, "model_state"),
        )
        states = [
            jax.tree.unflatten(jax.tree.structure(structs), leaves)
            for structs, leaves in zip(self._structs, values, strict=True)
        ]
        return nnx.merge(self._graphs[train], *states)

    def call(
        self,
        model: nnx.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        path: str,
    ) -> tuple[Any, PyTree]:
        """Return the output and the new state, which the call wrote into the module."""
        rngs = {"rngs": nnx.Rngs(options["key"])} if "key" in options else {}
        out = call(reach(model, path), args, kwargs, {**options, **rngs})
        state = tree.named_leaves(_plain(_split(model)[3]))
        return out, tree.nested({name: state[name] for name in self._names[2]})

    def _take_apart(self, key: jax.Array) -> tuple[dict[bool, Any], list[Any]]:
        """Return the graphs for training and evaluation, and the parameters, random streams and state."""
        with nnx.use_eager_sharding(False):  # axis names are for sharding rules; a mesh may not have them
            model = checked_module(self._make(nnx.Rngs(key)), nnx.Module, "rngs")
            model = nnx.merge(*nnx.split(model))  # a copy: the user's own module keeps its mode
        _keep_arrays(model)
        self.has_dropout = any(
            isinstance(part, nnx.Dropout) and part.rate > 0 for _, part in nnx.iter_graph(model)
        )
        training, *_ = _split(_in_mode(model, train=True))
        evaluating, *states = _split(_in_mode(model, train=False))
        return {True: training, False: evaluating}, states


def _split(model: nnx.Module) -> tuple[Any, ...]:
    return nnx.split(model, nnx.Param, nnx.RngState, ...)


def _in_mode(model: nnx.Module, train: bool) -> nnx.Module:
    """Return the module in this mode, which may also be an attribute that NNX leaves, such as `training`."""
    (nnx.Module.train if train else nnx.Module.eval)(model)
    mode = mode_and_key(train, key=None)
    for _, node in nnx.iter_graph(model):
        for name, value in list(vars(node).items()) if isinstance(node, nnx.Pytree) else ():
            if name in mode and isinstance(value, bool):
                setattr(node, name, mode[name])
    return model


def _plain(state: Any) -> dict[str, Any]:
    return tree.nested(tree.named_leaves(nnx.to_pure_dict(state)))


def _keep_arrays(model: nnx.Module) -> None:
    """Mark plain arrays as data: in a trace NNX would treat them as constants, and tracers would leak."""
    for _, node in list(nnx.iter_graph(model)):
        for name, value in list(vars(node).items()) if isinstance(node, nnx.Pytree) else ():
            if isinstance(value, jax.Array):
                setattr(node, name, nnx.data(value))


def _fresh(streams: Any, key: jax.Array) -> list[jax.Array]:
    """Return fresh leaves for `streams`: new keys, and counts of 0."""

    def fresh(i: int, x: jax.ShapeDtypeStruct) -> jax.Array:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.fold_in(key, i), x.shape)
        return jnp.zeros(x.shape, x.dtype)

    return [fresh(i, x) for i, x in enumerate(jax.tree.leaves(streams))]
