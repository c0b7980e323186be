"""Another policy of rematerialization for the layers of a loss, whatever its model says.

Layers are found in the traced loss: the bodies of scans over stacked weights. If there is none, they are the
parts that the model itself wraps in `jax.checkpoint`.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import jax

from meshwright.errors import UsageError
from meshwright.program._internal import (
    Operation,
    Program,
    as_function,
    bind_body,
    evaluate,
    jaxprs,
    program_of,
    replacing,
    walk,
    without_checkpoints,
)


def with_layer_policy(
    function: Callable[..., Any], policy: Callable[..., Any], name: str
) -> Callable[..., Any]:
    """Return `function` whose layers keep for the gradient what `policy` says, and nothing else.

    Raises (when called):
      UsageError: The function has no layers.
    """

    @wraps(function)
    def called(params: Any, *arguments: Any, **named: Any) -> Any:
        traced = jax.jit(function).trace(params, *arguments, **named)
        layers = layers_of(traced.jaxpr, len(jax.tree.leaves(params)))
        if not layers:
            raise UsageError(
                f"remat={name!r}: the loss has no layers. Layers are found if a model scans over their "
                "stacked weights (`jax.lax.scan`), or calls them through `jax.checkpoint`.\n  Give a policy "
                "for the whole loss, such as remat='dots'."
            )
        changed = as_function(traced.jaxpr, traced.out_info, _changed(layers, policy))
        return changed(params, *arguments, **named)

    return called


def layers_of(jaxpr: Any, num_weights: int) -> frozenset[int]:
    """Return the identities of a jaxpr's equations that compute layers; there may be none."""
    program = program_of(jaxpr)
    scans = frozenset(id(operation.eqn) for operation in _scans_over_weights(program, num_weights))
    return scans or frozenset(id(eqn) for eqn in _outside_loops(jaxpr) if jaxprs.is_checkpoint(eqn))


def _scans_over_weights(program: Program, num_weights: int) -> Iterator[Operation]:
    weights, others = set(program.inputs[:num_weights]), set(program.inputs[num_weights:])
    for operation in program.operations:
        stacked = {tie.source for tie in operation.entering if tie.source_stacked} & weights - others
        has_products = any(inner.primitive.product for body in operation.bodies for inner in walk(body))
        if jaxprs.is_scan(operation.eqn) and stacked and has_products:
            yield operation
        for variables in (weights, others):
            if not variables.isdisjoint(operation.inputs):
                variables.update(operation.outputs)


def _outside_loops(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxprs.opened(jaxpr).eqns:
        yield eqn
        if jaxprs.is_call(eqn):
            yield from _outside_loops(jaxprs.body_of(eqn))


def _changed(layers: frozenset[int], policy: Callable[..., Any]) -> Callable[[Any, list[Any]], Sequence[Any]]:
    """Return the function of an equation and its operands that computes layers with the policy."""

    def is_layer(eqn: Any) -> bool:
        return id(eqn) in layers

    def changed(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        if is_layer(eqn):
            return _layer(eqn, operands, policy)
        body = jaxprs.body_of(eqn)  # that of `mw.nn.layers`, which stays a call
        return bind_body(eqn, operands, lambda *inputs: evaluate(body, inputs, results))

    results = replacing(
        lambda eqn: is_layer(eqn) or (jaxprs.is_stack(eqn) and jaxprs.holds(eqn, is_layer)), changed
    )
    return results


def _layer(eqn: Any, operands: list[Any], policy: Callable[..., Any]) -> Sequence[Any]:
    # No common subexpressions can be shared between the iterations of a scan, so only others prevent it.
    prevent_cse = jaxprs.is_checkpoint(eqn) and jaxprs.settings_of(eqn)["prevent_cse"]
    body = jaxprs.body_of(eqn)
    keeping = jax.checkpoint(
        lambda *inputs: evaluate(body, inputs, without_checkpoints), policy=policy, prevent_cse=prevent_cse
    )
    return keeping(*operands) if jaxprs.is_checkpoint(eqn) else bind_body(eqn, operands, keeping)
