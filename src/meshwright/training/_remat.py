"""Named policies of rematerialization: they trade memory for time in computing the gradient."""

from collections.abc import Callable
from typing import Any

import jax

from meshwright.errors import UsageError, did_you_mean
from meshwright.training._layers import with_layer_policy

LAYERS = "layers:"
"""What begins the name of a policy for each layer, such as "layers:dots"."""
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
