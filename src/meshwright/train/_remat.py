"""Named policies of rematerialization: they trade memory for time in computing the gradient."""

from collections.abc import Callable
from typing import Any

import jax

from meshwright.errors import UsageError, nearest

RematPolicy = Callable[..., Any]
"""A policy of `jax.checkpoint`."""

_POLICIES: dict[str, RematPolicy] = {
    "everything": jax.checkpoint_policies.everything_saveable,
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def remat(function: Callable[..., Any], policy: str) -> Callable[..., Any]:
    """Return `function` with rematerialization: values that `policy` does not keep are computed twice.

    Args:
      function: A loss or a part of a model.
      policy: The name of a policy; see `remat_policy`.

    Raises:
      UsageError: There is no such policy.
    """
    return jax.checkpoint(function, policy=remat_policy(policy))


def remat_policy(policy: str) -> RematPolicy:
    """Return a policy of `jax.checkpoint` by its name.

      everything     keep all values: nothing is computed twice
      nothing        keep the arguments only
      dots           keep the results of matrix products
      dots_no_batch  keep the products without batch dimensions: those with weights, not attention's
      save:a,b       keep the values that `jax.ad_checkpoint.checkpoint_name` calls a or b
      offload:a,b    keep these values in the host's memory

    Raises:
      UsageError: There is no such policy.
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
    close = nearest(kind, [*_POLICIES, "save:names", "offload:names"])
    raise UsageError(
        f"there is no rematerialisation policy {policy!r}."
        + (f" Did you mean {close!r}?" if close else "")
        + "\n"
        f"  There are {', '.join(_POLICIES)}, save:a,b and offload:a,b with names of your model."
    )
