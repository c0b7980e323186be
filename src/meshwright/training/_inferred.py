"""Sharding rules for a user without rules, from the names of a model's axes and from its loss."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from meshwright.base._internal import PyTree, collector_paused
from meshwright.parallel._internal import LOGICAL_AXES, Rule, explicit, fsdp, infer_rules, logical
from meshwright.training._keys import key_of
from meshwright.training._loss import objective
from meshwright.training._state import Variables


def inferred_rules(
    first: Variables,
    loss: Callable[..., Any] | None,
    *batch: PyTree,
    axes: Mapping[str, Sequence[str | None]] = {},
) -> tuple[Rule, ...]:
    """Return rules for a model's parameters; only those of the model, if it states some on explicit axes."""
    if (rule := explicit(first.params)) is not None:
        return (rule,)
    axes_by_name = {name: of_dims for name, of_dims in axes.items() if {*of_dims} <= {None, *LOGICAL_AXES}}
    inferred = _traced(first, loss, *batch) if loss and batch else infer_rules(first.params)
    return (logical(axes_by_name), inferred, fsdp())


def _traced(first: Variables, loss: Callable[..., Any], batch: PyTree) -> Rule:
    def evaluated(params: PyTree, model_state: PyTree, batch: PyTree) -> PyTree:
        return objective(loss)(params, model_state, batch, key_of(0), jnp.int32(0))

    with collector_paused():
        return infer_rules(first.params, evaluated, first.model_state, batch)
