"""Equinox models: modules are trees already, whose leaves are arrays and anything else."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from meshwright.base._internal import tree
from meshwright.engine._adapters._library import (
    Axes,
    PyTree,
    abstract,
    accepted,
    call,
    checked_module,
    in_evaluation,
    ordered_leaves,
    reach,
)
from meshwright.training._internal import Variables


class Equinox:
    """An Equinox module as functions.

    Floating-point arrays are the parameters, as in `eqx.filter_grad`; other arrays and the values of
    `StateIndex`es are the state. `apply` calls the module as it is written, mostly for one example: map it
    over a batch with `jax.vmap`.
    """

    per_example = True

    def __init__(self, make: Callable[[jax.Array], Any]):
        self._make = make
        self.axes: Mapping[str, Axes] = {}
        self._static, self._structs = abstract(self._take_apart)
        indices = jax.tree.map(lambda x: x if _is_index(x) else None, self._structs, is_leaf=_is_index)
        indexed, named = set(tree.leaf_names(indices)), tree.named_leaves(self._structs)
        is_param = {n: jnp.issubdtype(x.dtype, jnp.inexact) and n not in indexed for n, x in named.items()}
        self._param_names = [name for name in named if is_param[name]]
        self._state_names = [name for name in named if not is_param[name]]
        self._indexed = bool(indexed)
        self.stateful = bool(self._state_names)
        parts = jax.tree.leaves(self._static, is_leaf=_is_dropout)
        self.has_dropout = any(_is_dropout(part) and part.p > 0 for part in parts)

    def init(self, key: jax.Array) -> Variables:
        """Return the arrays of a new module or, if a module was given, those of that module."""
        named = tree.named_leaves(self._take_apart(key)[1])
        return Variables(_nested(named, self._param_names), _nested(named, self._state_names))

    def bind(self, params: PyTree, model_state: PyTree, key: jax.Array | None, train: bool) -> Any:
        """Return the module in training or inference mode; if stateful, paired with its `eqx.nn.State`."""
        leaves = dict(
            zip(self._param_names, ordered_leaves(params, self._param_names, "params"), strict=True)
        )
        leaves |= zip(
            self._state_names, ordered_leaves(model_state, self._state_names, "model_state"), strict=True
        )
        arrays = tree.map_named(lambda name, _: leaves[name], self._structs)
        model = eqx.nn.inference_mode(eqx.combine(arrays, self._static), not train)
        model = model if train else in_evaluation(model)
        return eqx.nn.make_with_state(lambda: model)() if self._indexed else model

    def call(
        self,
        model: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        path: str,
    ) -> tuple[Any, PyTree]:
        """Return the output of the module, and its new state, {} if it has none."""
        if self._indexed:
            model, state = model
            out = call(reach(model, path), args, kwargs, {**options, "state": state})
            if accepted(reach(model, path), {"state": state}):
                out, state = out
            model = _rejoined(model, state)
        else:
            out = call(reach(model, path), args, kwargs, options)
        return out, _nested(tree.named_leaves(eqx.filter(model, eqx.is_array)), self._state_names)

    def _take_apart(self, key: jax.Array) -> tuple[Any, Any]:
        """Return the module without its arrays, and the arrays."""
        model = self._make(key)
        if isinstance(model, tuple) and len(model) == 2:
            model = _rejoined(*model)
        arrays, static = eqx.partition(checked_module(model, eqx.Module, "key"), eqx.is_array)
        return static, arrays


def _rejoined(model: Any, state: Any) -> Any:
    """Return the module with its state inside, as it was before `make_with_state`."""
    return jax.tree.map(
        lambda x: eqx.nn.StateIndex(state.get(x)) if _is_index(x) else x, model, is_leaf=_is_index
    )


def _is_index(x: Any) -> bool:
    return isinstance(x, eqx.nn.StateIndex)


def _is_dropout(x: Any) -> bool:
    return isinstance(x, eqx.nn.Dropout)


def _nested(named: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return tree.nested({name: named[name] for name in names})
