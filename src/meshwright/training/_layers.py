"""Another policy of rematerialization for the layers of a loss, whatever its model says.

Layers are found in the traced loss: the bodies of scans over stacked weights. If there is none, they are the
parts that the model itself wraps in `jax.checkpoint`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

import jax

from meshwright.errors import UsageError
from meshwright.program._internal import (
    CALLS,
    Operation,
    Program,
    bind,
    equations,
    evaluate,
    is_stack,
    program_of,
    walk,
)

_CHECKPOINTS = ("checkpoint", "remat", "remat2")


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
        leaves = jax.tree.leaves((params, arguments, named))
        leaves = evaluate(traced.jaxpr, leaves, _changed(layers, policy))
        return jax.tree.unflatten(jax.tree.structure(traced.out_info), leaves)

    return called


def layers_of(jaxpr: Any, num_weights: int) -> frozenset[int]:
    """Return the identities of a jaxpr's equations that compute layers; there may be none."""
    program = program_of(jaxpr)
    scans = frozenset(id(operation.eqn) for operation in _scans_over_weights(program, num_weights))
    return scans or frozenset(id(eqn) for eqn in _outside_loops(jaxpr) if eqn.primitive.name in _CHECKPOINTS)


def _scans_over_weights(program: Program, num_weights: int) -> Iterator[Operation]:
    weights, others = set(program.inputs[:num_weights]), set(program.inputs[num_weights:])
    for operation in program.operations:
        stacked = {tie.source for tie in operation.entering if tie.source_stacked} & weights - others
        has_products = any("dot_general" in inner.kind for body in operation.bodies for inner in walk(body))
        if operation.kind == "scan" and stacked and has_products:
            yield operation
        for variables in (weights, others):
            if not variables.isdisjoint(operation.inputs):
                variables.update(operation.outputs)


def _outside_loops(jaxpr: Any) -> Iterator[Any]:
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield eqn
        if eqn.primitive.name in CALLS:
            yield from _outside_loops(eqn.params["jaxpr"])


def _changed(layers: frozenset[int], policy: Callable[..., Any]) -> Callable[[Any, list[Any]], Sequence[Any]]:
    """Return the function of an equation and its operands that computes layers with the policy."""

    def results(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        if id(eqn) in layers:
            return _layer(eqn, operands, policy)
        if eqn.primitive.name in CALLS and any(
            id(inner) in layers for inner in equations(eqn.params["jaxpr"])
        ):
            return _inner(eqn, operands, results)
        return bind(eqn, operands)

    return results


def _inner(
    eqn: Any, operands: list[Any], results: Callable[[Any, list[Any]], Sequence[Any]]
) -> Sequence[Any]:
    """Return the results of a call whose jaxpr is changed; that of `mw.nn.layers` stays a call."""
    jaxpr = eqn.params["jaxpr"]
    if not is_stack(eqn):
        return evaluate(jaxpr, operands, results)
    avals = [var.aval for var in jaxpr.jaxpr.invars]
    changed_jaxpr = jax.make_jaxpr(lambda *arguments: evaluate(jaxpr, arguments, results))(*avals)
    return bind(eqn, operands, {"jaxpr": changed_jaxpr})


def _layer(eqn: Any, operands: list[Any], policy: Callable[..., Any]) -> Sequence[Any]:
    jaxpr, params = eqn.params["jaxpr"], eqn.params
    keeping = _checkpointed(jaxpr, policy, params)
    if eqn.primitive.name in _CHECKPOINTS:
        return keeping(*operands)
    avals = [var.aval for var in jaxpr.jaxpr.invars]
    return bind(eqn, operands, {"jaxpr": jax.make_jaxpr(keeping)(*avals)})


def _checkpointed(jaxpr: Any, policy: Callable[..., Any], params: Mapping[str, Any]) -> Callable[..., Any]:
    # No common subexpressions can be shared between the iterations of a scan, so only others prevent it.
    prevent_cse = params.get("prevent_cse", False)
    return jax.checkpoint(
        lambda *inputs: evaluate(jaxpr, inputs, _without_checkpoints), policy=policy, prevent_cse=prevent_cse
    )


def _without_checkpoints(eqn: Any, operands: list[Any]) -> Sequence[Any]:
    """Return the results of an equation in a layer; the model's own `jax.checkpoint` is left out."""
    is_checkpoint = eqn.primitive.name in _CHECKPOINTS
    if is_checkpoint or (eqn.primitive.name in CALLS and _has_checkpoint(eqn.params["jaxpr"])):
        return evaluate(eqn.params["jaxpr"], operands, _without_checkpoints)
    return bind(eqn, operands)


def _has_checkpoint(jaxpr: Any) -> bool:
    return any(eqn.primitive.name in _CHECKPOINTS for eqn in _outside_loops(jaxpr))
