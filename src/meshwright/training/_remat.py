"""Named policies of rematerialization: they trade memory for time in computing the gradient.

A policy may replace what the model says about the layers of a loss. Layers are found in the traced loss: the
bodies of scans over stacked weights. If there is none, they are the parts that the model itself wraps in
`jax.checkpoint`.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import jax

from meshwright.errors import UsageError, did_you_mean
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

LAYERS = "layers:"
"""The beginning of the name of a policy for each layer, such as "layers:dots"."""
RematPolicy = Callable[..., Any]
"""A policy of `jax.checkpoint`."""

_POLICIES: dict[str, RematPolicy] = {
    "everything": jax.checkpoint_policies.everything_saveable,
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "offload_dots_no_batch": jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
}


def remat(function: Callable[..., Any], policy: str) -> Callable[..., Any]:
    """Return `function` with rematerialization: values that `policy` does not keep are computed twice.

    "layers:POLICY" is for each layer of a loss, such as "layers:dots", and replaces what the model itself
    says about its layers. Layers are the bodies of `jax.lax.scan` over stacked weights, in any model.
    If there are none, they are the functions that the model calls through `jax.checkpoint`.

    Args:
      function: A loss or a part of a model. For the policies of layers, its first argument is the parameters.
      policy: The name of a policy, see `remat_policy`, or "layers:" and such a name.

    Raises:
      UsageError: There is no such policy. Or, when called, there is no layer.

    Example:
      >>> def loss(params, x):
      ...     return jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, params["w"])[0].sum()
      >>> params, x = {"w": jnp.ones((4, 2, 2))}, jnp.ones(2)
      >>> whole = jax.grad(loss)(params, x)["w"]
      >>> bool((jax.grad(mw.training.remat(loss, "layers:nothing"))(params, x)["w"] == whole).all())
      True
    """
    if policy.startswith(LAYERS):
        return with_layer_policy(function, remat_policy(policy.removeprefix(LAYERS)), policy)
    return jax.checkpoint(function, policy=remat_policy(policy))


def remat_policy(policy: str) -> RematPolicy:
    """Return a policy of `jax.checkpoint` by its name.

    everything     keep all values: nothing is computed twice
    nothing        keep the arguments only
    dots           keep the results of matrix products
    dots_no_batch  keep the products without batch dimensions: those with weights, not attention's
    offload_dots_no_batch  keep these products in the host's memory
    save:a,b       keep the values that `jax.ad_checkpoint.checkpoint_name` calls a or b
    offload:a,b    keep these values in the host's memory
    """
    kind, _, listed = policy.partition(":")
    names = [name.strip() for name in listed.split(",") if name.strip()]
    if policy in _POLICIES:
        return _POLICIES[policy]
    if kind == "save" and names:
        return jax.checkpoint_policies.save_only_these_names(*names)
    if kind == "offload" and names:
        return jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[],
            names_which_can_be_offloaded=names,
            offload_src="device",
            offload_dst="pinned_host",
        )
    if policy.startswith(LAYERS):
        raise UsageError(
            f"the policy {policy!r} is for the layers of a loss: give it to `mw.training.remat` or "
            "`Experiment.remat`. A model's own argument takes the name without 'layers:'."
        )
    raise UsageError(
        f"there is no rematerialisation policy {policy!r}.{did_you_mean(kind, _POLICIES)}\n"
        f"  There are {', '.join(_POLICIES)}, save:a,b and offload:a,b with names of your model. "
        "'layers:' before a name makes it the policy of each layer of a loss."
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
