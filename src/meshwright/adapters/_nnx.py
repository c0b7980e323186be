"""Flax NNX: modules are graphs of variables, among them the counters that random numbers are drawn by."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from meshwright import tree
from meshwright.adapters._library import Axes, PyTree, abstract, call, made, pick, reach
from meshwright.errors import UsageError
from meshwright.train import Variables, key_of


class Nnx:
    """`nnx.Param`s are parameters; streams of random numbers start anew at each call; the rest is state."""

    per_example = False

    def __init__(self, make: Callable[[nnx.Rngs], Any]):
        self._make = make
        self._graphs, self._structs = abstract(self._take_apart)
        self._names = [tree.leaf_names(nnx.to_pure_dict(structs)) for structs in self._structs]
        self.stateful = bool(self._names[2])
        specs = tree.named_leaves(nnx.to_pure_dict(nnx.get_partition_spec(self._structs[0])))
        self.axes: Mapping[str, Axes] = {name: tuple(spec) for name, spec in specs.items() if spec}

    def init(self, key: jax.Array) -> Variables:
        """Return the arrays of a module made, or of the one there is."""
        params, _, state = self._take_apart(key)[1]
        return Variables(_plain(params), _plain(state))

    def bind(self, params: PyTree, model_state: PyTree, key: jax.Array | None, train: bool) -> nnx.Module:
        """Return a module in training or evaluation mode. Without a key its streams start from key 0."""
        param_names, stream_names, state_names = self._names
        if train and stream_names and key is None:
            raise UsageError(f"to train, this model draws random numbers ({stream_names[0]}): give it a key.")
        values = (
            pick(params, param_names, "params"),
            _fresh(self._structs[1], key_of(0) if key is None else key),
            pick(model_state, state_names, "model_state"),
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
        told: Mapping[str, Any],
        path: str,
    ) -> tuple[Any, PyTree]:
        """Return what the module returns; the call has changed its state in place."""
        rngs = {"rngs": nnx.Rngs(told["key"])} if "key" in told else {}
        out = call(reach(model, path), args, kwargs, {**told, **rngs})
        state = tree.named_leaves(_plain(_split(model)[3]))
        return out, tree.nested({name: state[name] for name in self._names[2]})

    def _take_apart(self, key: jax.Array) -> tuple[dict[bool, Any], list[Any]]:
        """Return the graphs in training and in evaluation, and parameters, streams and the rest."""
        with nnx.use_eager_sharding(False):  # names of axes are for our rules; a mesh may not have them
            model = made(self._make(nnx.Rngs(key)), nnx.Module, "rngs")
            model = nnx.merge(*nnx.split(model))  # the user's own keeps its mode
        _keep_arrays(model)
        model.train()
        training, *_ = _split(model)
        model.eval()
        evaluating, *states = _split(model)
        return {True: training, False: evaluating}, states


def _split(model: nnx.Module) -> tuple[Any, ...]:
    return nnx.split(model, nnx.Param, nnx.RngState, ...)


def _plain(state: Any) -> dict[str, Any]:
    return tree.nested(tree.named_leaves(nnx.to_pure_dict(state)))


def _keep_arrays(model: nnx.Module) -> None:
    """Have plain arrays taken for data: in a trace NNX takes them for constants, and they would leak."""
    for _, node in list(nnx.iter_graph(model)):
        for name, value in list(vars(node).items()) if isinstance(node, nnx.Pytree) else ():
            if isinstance(value, jax.Array):
                setattr(node, name, nnx.data(value))


def _fresh(streams: Any, key: jax.Array) -> list[jax.Array]:
    """Return keys, and counts of 0, for the leaves of `streams`."""

    def one(i: int, x: jax.ShapeDtypeStruct) -> jax.Array:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.fold_in(key, i), x.shape)
        return jnp.zeros(x.shape, x.dtype)

    return [one(i, x) for i, x in enumerate(jax.tree.leaves(streams))]
